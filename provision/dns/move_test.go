package dns

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// A controller gives the record of a replaced balancer its new address, with three permissions. The result is that of
// 'up', which afterwards changes the name as usual.
func TestRecordsAreMoved(t *testing.T) {
	setAccount(t)
	a, fresh := newAccount(), newAccount()
	a.poll, fresh.poll = time.Nanosecond, time.Nanosecond
	others := []provision.DNSRecord{record("lb-us-0", "aws/us-east-1", "198.51.100.1"), record("lb-us-1", "aws/us-east-1", "198.51.100.2")}
	a.set(t, chat(append(others, record("lb-eu-0", "aws/eu-west-3", "203.0.113.1"))...))
	after := chat(append(others, record("lb-eu-0", "aws/eu-west-3", "203.0.113.9"))...)
	fresh.set(t, after)

	var did []string
	a.faults.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
		did = append(did, strings.TrimPrefix(c.Action, "route53:"))
		return testcloud.Served
	}
	for range 2 {
		if err := a.client(t).UpdateRecords(t.Context(), a.zone, chat(record("lb-eu-0", "aws/eu-west-3", "203.0.113.9"))); err != nil {
			t.Fatal(err)
		}
		if got, want := a.end(), fresh.end(); !slices.Equal(got, want) {
			t.Fatalf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	slices.Sort(did)
	if used := slices.Compact(did); !slices.Equal(used, []string{"ChangeResourceRecordSets", "ListResourceRecordSets", "UpdateHealthCheck"}) {
		t.Errorf("it called %q", used)
	}
	a.faults.DecideOutcome = nil
	a.set(t, after)
	if got, want := a.end(), fresh.end(); !slices.Equal(got, want) {
		t.Errorf("after up:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	after.Records = nil
	a.set(t, after)
	if got := a.end(); len(got) > 0 {
		t.Errorf("after down there is %q", got)
	}
}

// Clients never get the address of the lost machine as a healthy one, whichever call is the last.
func TestInterruptedMoveServesNoDeadAddress(t *testing.T) {
	setAccount(t)
	const dead, next = "203.0.113.1", "203.0.113.9"
	for _, denied := range []string{"", "route53:ChangeResourceRecordSets", "route53:UpdateHealthCheck"} {
		a := newAccount()
		a.poll = time.Nanosecond
		a.set(t, chat(record("lb-us-0", "aws/us-east-1", "198.51.100.1"), record("lb-eu-0", "aws/eu-west-3", dead)))
		a.fake.SetAddressHealth(netip.MustParseAddr(dead), false)
		a.fake.DenialCodes = map[string]string{denied: "AccessDenied"}
		err := a.client(t).UpdateRecords(t.Context(), a.zone, chat(record("lb-eu-0", "aws/eu-west-3", next)))
		if (err != nil) != (denied != "") {
			t.Errorf("without %s: got %v", denied, err)
		}
		a.fake.SetAddressHealth(netip.MustParseAddr(next), true)
		want := "198.51.100.1"
		if denied == "" {
			want = next
		}
		if got := a.fake.ResolveName(a.zone, "chat.example.com", "eu-west-3", "us-east-1"); !slices.Equal(got, []netip.Addr{netip.MustParseAddr(want)}) {
			t.Errorf("without %s clients get %q, want %s", denied, got, want)
		}
	}
}

// Records of others, and missing ones, are not changed.
func TestMoveRejectsOtherRecords(t *testing.T) {
	setAccount(t)
	for name, tt := range map[string]struct {
		change func(n *provision.PublicName)
		want   string
	}{
		"another owner":   {func(n *provision.PublicName) { n.Owner = "them" }, "belongs to another owner"},
		"another service": {func(n *provision.PublicName) { n.Service = "other" }, "belongs to another owner"},
		"no such record":  {func(n *provision.PublicName) { n.Records[0].ID = "lb-eu-7" }, "has no A record of lb-eu-7"},
		"an IPv6 address": {func(n *provision.PublicName) { n.Records[0].Address = netip.MustParseAddr("2001:db8::1") }, "has no AAAA record of lb-eu-0"},
		"no such name":    {func(n *provision.PublicName) { n.Name = "other.example.com" }, "has no A record of lb-eu-0"},
		"no such zone":    {func(n *provision.PublicName) { n.Zone = "" }, "NoSuchHostedZone"},
	} {
		a := newAccount()
		a.poll = time.Nanosecond
		a.set(t, chat(record("lb-eu-0", "aws/eu-west-3", "203.0.113.1")))
		before := a.end()
		n := chat(record("lb-eu-0", "aws/eu-west-3", "203.0.113.9"))
		tt.change(&n)
		zone := a.zone
		if n.Zone == "" {
			zone = "Z404"
		}
		err := a.client(t).UpdateRecords(t.Context(), zone, n)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
		if got := a.end(); !slices.Equal(got, before) {
			t.Errorf("%s: it changed %q", name, got)
		}
		if owned := (*provision.OwnedError)(nil); strings.HasPrefix(name, "another") && !errors.As(err, &owned) {
			t.Errorf("%s: the error is not an OwnedError: %v", name, err)
		}
	}
}

// The health checks that a controller may change are those of the name's own records.
func TestHealthChecksOfName(t *testing.T) {
	setAccount(t)
	a := newAccount()
	a.poll = time.Nanosecond
	n := chat(record("lb-us-0", "aws/us-east-1", "198.51.100.1"), record("lb-eu-0", "aws/eu-west-3", "203.0.113.1"))
	if got, err := a.client(t).HealthChecks(t.Context(), n); err != nil || len(got) != 0 {
		t.Errorf("before it is published: %q, %v", got, err)
	}
	a.set(t, n)
	other := chat(record("lb-us-0", "aws/us-east-1", "198.51.100.7"))
	other.Name = "other.example.com"
	a.set(t, other)
	got, err := a.client(t).HealthChecks(t.Context(), n)
	checks, tags := a.fake.HealthChecks()
	var want []string
	for i, c := range checks {
		if tags[i]["skyserve:dns"] == n.Name {
			want = append(want, c.ID)
		}
	}
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) || len(want) != 2 {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	n.Owner = "them"
	if got, err := a.client(t).HealthChecks(t.Context(), n); err != nil || len(got) != 0 {
		t.Errorf("of another owner: %q, %v", got, err)
	}
}
