package dns

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// byHand is a record set that was created in the console.
func byHand(name, kind, value string) testcloud.RecordSet {
	ttl := int64(300)
	return testcloud.RecordSet{Name: name, Type: kind, TTL: &ttl, ResourceRecords: &testcloud.Values{ResourceRecord: []testcloud.Value{{Value: value}}}}
}

// A name of another owner is never changed.
func TestForeignNamesAreKept(t *testing.T) {
	setAccount(t)
	other := world()
	other.Service, other.Owner = "code", "cd34"
	same := world()
	same.Owner = "cd34"
	weight := int64(1)
	weighted := byHand("chat.example.com", "AAAA", "2001:db8::7")
	weighted.SetIdentifier, weighted.Weight = "mine", &weight
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, a *account) error
		says    string
	}{
		{"another service", func(t *testing.T, a *account) error { a.set(t, other); return nil }, `service code of owner "cd34"`},
		{"another owner", func(t *testing.T, a *account) error { a.set(t, same); return nil }, `service chat of owner "cd34"`},
		{"an address", func(_ *testing.T, a *account) error {
			return a.fake.AddRecords(a.zone, byHand("chat.example.com", "A", "192.0.2.1"))
		}, "not created by skyserve: chat.example.com A 192.0.2.1"},
		{"an alias of a name", func(_ *testing.T, a *account) error {
			return a.fake.AddRecords(a.zone, byHand("chat.example.com", "CNAME", "other.example.org."))
		}, "not created by skyserve: chat.example.com CNAME other.example.org."},
		{"a note", func(_ *testing.T, a *account) error {
			return a.fake.AddRecords(a.zone, byHand("_skyserve.chat.example.com", "TXT", `"hands off"`))
		}, `not created by skyserve: _skyserve.chat.example.com TXT "hands off"`},
		{"a record below", func(_ *testing.T, a *account) error {
			return a.fake.AddRecords(a.zone, byHand("us-east-1._skyserve.chat.example.com", "A", "192.0.2.1"))
		}, "not created by skyserve: us-east-1._skyserve.chat.example.com A 192.0.2.1"},
		{"a record beside ours", func(t *testing.T, a *account) error {
			a.set(t, world())
			return a.fake.AddRecords(a.zone, weighted)
		}, "not created by skyserve: chat.example.com AAAA 2001:db8::7"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAccount()
			if err := tt.prepare(t, a); err != nil {
				t.Fatal(err)
			}
			before := a.end()
			changed := world()
			changed.Records[0].Withdrawn = true
			for _, n := range []provision.PublicName{changed, chat()} {
				if len(n.Records) == 0 && tt.name == "a record beside ours" {
					continue // see below
				}
				for _, err := range []error{a.client(t).Check(t.Context(), n), a.client(t).Set(t.Context(), n)} {
					var owned *provision.OwnedError
					if !errors.As(err, &owned) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "zone example.com (public, "+a.zone+")") {
						t.Errorf("%s: got %v", tt.name, err)
					}
				}
			}
			if got := a.end(); !reflect.DeepEqual(got, before) {
				t.Errorf("%s: got %q, want %q", tt.name, got, before)
			}
		})
	}
}

// Check changes nothing, and accepts the owner's name.
func TestCheckChangesNothing(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		for range 2 {
			before := a.end()
			if err := a.client(t).Check(t.Context(), world()); err != nil || !reflect.DeepEqual(a.end(), before) {
				t.Errorf("got %v", err)
			}
			a.set(t, world())
		}
		bad := world()
		bad.Zone = "example.net"
		bad.Name = "chat.example.net"
		if err := a.client(t).Check(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "no public hosted zone of that name") {
			t.Errorf("got %v", err)
		}
	})
}

// Removing a name keeps manually created record sets beside it.
func TestOwnRecordsAreRemovedBesideForeign(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		a.set(t, world())
		weight := int64(1)
		theirs := byHand("chat.example.com", "AAAA", "2001:db8::7")
		theirs.SetIdentifier, theirs.Weight = "mine", &weight
		if err := a.fake.AddRecords(a.zone, theirs); err != nil {
			t.Fatal(err)
		}
		a.set(t, chat())
		if got := a.end(); len(got) != 1 || !strings.Contains(got[0], "2001:db8::7") {
			t.Errorf("got %q", got)
		}
	})
}

// When two owners publish a name at once, one succeeds, and the other leaves no resources; also if only their
// notes conflict.
func TestTwoOwnersAtOnce(t *testing.T) {
	setAccount(t)
	for _, records := range [][]provision.DNSRecord{world().Records, {record("lb-asia-0", "aws/ap-northeast-1", "192.0.2.1")}} {
		synctest.Test(t, func(t *testing.T) {
			a := newAccount()
			rival := chat(records...)
			rival.Owner = "cd34"
			a.faults.DuringCall = func(c testcloud.Call) {
				if c.Action == "route53:ChangeResourceRecordSets" { // the other owner writes between reading and writing
					a.faults.DuringCall = nil
					a.set(t, rival)
				}
			}
			err := a.client(t).Set(t.Context(), world())
			var owned *provision.OwnedError
			if !errors.As(err, &owned) || !strings.Contains(err.Error(), "cd34") {
				t.Errorf("got %v", err)
			}
			fresh := newAccount()
			fresh.set(t, rival)
			if got, want := a.end(), fresh.end(); !reflect.DeepEqual(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestMissingZone(t *testing.T) {
	setAccount(t)
	for _, tt := range []struct {
		zones   []string
		private bool
		says    string
	}{
		{nil, false, "no public hosted zone of that name in this AWS account; existing hosted zones: none"},
		{[]string{"example.org", "chat.example.com"}, false, "existing hosted zones: chat.example.com (public, Z000000000002), example.org (public, Z000000000001)"},
		{[]string{"example.com"}, true, "no private hosted zone of that name in this AWS account; existing hosted zones: example.com (public, Z000000000001)"},
		{[]string{"example.com", "example.com"}, false, "name must be unique in this AWS account, got example.com (public, Z000000000001) and example.com (public, Z000000000002)"},
	} {
		synctest.Test(t, func(t *testing.T) {
			faults := &testcloud.Faults{}
			a := &account{faults: faults, fake: testcloud.NewRoute53(faults)}
			for _, z := range tt.zones {
				a.fake.AddZone(z, false)
			}
			n := world()
			n.Private = tt.private
			if err := a.client(t).Set(t.Context(), n); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %s", err, tt.says)
			}
		})
	}
}

func TestDeniedCalls(t *testing.T) {
	setAccount(t)
	for _, tt := range []struct{ action, code, says string }{
		{"ListHostedZonesByName", "AccessDenied", "permission denied for route53:ListHostedZonesByName"},
		{"ChangeResourceRecordSets", "AccessDenied", "permission denied for route53:ChangeResourceRecordSets"},
		{"CreateHealthCheck", "AccessDeniedException", "permission denied for route53:CreateHealthCheck"},
		{"ListResourceRecordSets", "ExpiredToken", "no valid credentials"},
		{"ListHostedZonesByName", "InvalidClientTokenId", "no valid credentials"},
		{"ListHostedZonesByName", "SignatureDoesNotMatch", "no valid credentials"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAccount()
			a.fake.DenialCodes = map[string]string{"route53:" + tt.action: tt.code}
			err := a.client(t).Set(t.Context(), world())
			var refused *provision.CredentialsError
			if !errors.As(err, &refused) || refused.Code != tt.code || refused.Hint == "" || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: got %v", tt.code, err)
			}
		})
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	var refused *provision.CredentialsError
	if err := newAccount().client(t).Set(t.Context(), world()); !errors.As(err, &refused) || refused.Action != "" || refused.Hint == "" {
		t.Errorf("without credentials: got %v", err)
	}
}

// An invalid name is rejected before any call.
func TestInvalidNames(t *testing.T) {
	setAccount(t)
	for _, tt := range []struct {
		change func(*provision.PublicName)
		says   string
	}{
		{func(n *provision.PublicName) { n.Name = "chat.example.org" }, "not in hosted zone example.com"},
		{func(n *provision.PublicName) { n.Name = strings.Repeat("a.", 110) + "example.com" }, "limited to 220 characters"},
		{func(n *provision.PublicName) { n.Routing = "magic" }, `routing must be latency or geo, got "magic"`},
		{func(n *provision.PublicName) { n.Service = "a b" }, "may contain only letters"},
		{func(n *provision.PublicName) { n.Records[1].ID = "lb-us-0" }, `record ids must be unique, got "lb-us-0" twice`},
		{func(n *provision.PublicName) { n.Records[0].ID = "" }, "may contain only letters"},
		{func(n *provision.PublicName) { n.Records[0].Region = "static/basement" }, `record "lb-us-0": finding the AWS region nearest to static/basement`},
		{func(n *provision.PublicName) { n.Records[0].Region = "aws/us-west-9" }, `record "lb-us-0": region aws/us-west-9 is unknown`},
		{func(n *provision.PublicName) { n.Records[0].Address = netip.Addr{} }, "address must be a specific IP address"},
		{func(n *provision.PublicName) { n.Records[0].Check = "ftp://198.51.100.1/" }, "http or https URL"},
		{func(n *provision.PublicName) { n.Records[0].Check += strings.Repeat("x", 250) }, "limited to 255 characters"},
	} {
		a, n := newAccount(), world()
		tt.change(&n)
		if err := a.client(t).Set(t.Context(), n); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("got %v, want %s", err, tt.says)
		}
		if calls := a.faults.CallCounts(); len(calls) > 0 {
			t.Errorf("%s: called %v", tt.says, calls)
		}
	}
}

// A call with an ended context changes nothing.
func TestEndedContextChangesNothing(t *testing.T) {
	setAccount(t)
	a := newAccount()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.client(t).Set(ctx, world()); !errors.Is(err, context.Canceled) || len(a.end()) > 0 {
		t.Errorf("got %v, and there is %q", err, a.end())
	}
}
