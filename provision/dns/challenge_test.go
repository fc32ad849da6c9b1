package dns

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/provision"
)

const challengeName = "_acme-challenge.chat.example.com"

// values returns the values of a name's TXT record in the hosted zone.
func (a *account) values(name string) []string {
	var values []string
	for _, s := range a.fake.RecordSets(a.zone) {
		if strings.TrimSuffix(s.Name, ".") == name && s.Type == "TXT" {
			for _, v := range s.ResourceRecords.ResourceRecord {
				values = append(values, strings.Trim(v.Value, `"`))
			}
		}
	}
	return values
}

// A challenge record has one value, the newest, and is removed with it. If the zone's id is configured, Route
// 53 receives only write calls.
func TestChallengeRecords(t *testing.T) {
	setAccount(t)
	a := newAccount()
	var did []string
	a.faults.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
		did = append(did, c.Action)
		return testcloud.Served
	}
	known, sought := a.client(t).Challenges("example.com", a.zone, false), a.client(t).Challenges("example.com", "", false)
	for _, c := range []*Challenges{known, sought} {
		did = nil
		for _, value := range []string{"of a balancer that died", "of-the-next-try"} {
			if err := c.SetTXT(t.Context(), challengeName, value, time.Minute); err != nil {
				t.Fatal(err)
			}
			if got := a.values(challengeName); !slices.Equal(got, []string{value}) {
				t.Errorf("the record is %q, want %q", got, value)
			}
		}
		for range 2 { // the second call finds no record
			if err := c.RemoveTXT(t.Context(), challengeName, "of-the-next-try", time.Minute); err != nil || a.values(challengeName) != nil {
				t.Errorf("removed: %v, the record is %q", err, a.values(challengeName))
			}
		}
		writes := slices.DeleteFunc(slices.Clone(did), func(action string) bool { return action == "route53:ListHostedZonesByName" })
		if reads := len(did) - len(writes); len(writes) != 4 || reads != map[*Challenges]int{known: 0, sought: 1}[c] {
			t.Errorf("called %q", did)
		}
	}
}

func TestChallengeWithoutPermission(t *testing.T) {
	setAccount(t)
	a := newAccount()
	a.fake.DenialCodes = map[string]string{"route53:ChangeResourceRecordSets": "AccessDenied"}
	err := a.client(t).Challenges("example.com", a.zone, false).SetTXT(t.Context(), challengeName, "v", time.Minute)
	var refused *provision.CredentialsError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "permission denied for route53:ChangeResourceRecordSets") {
		t.Errorf("got %v", err)
	}
	if _, err := a.client(t).ZoneID(t.Context(), "example.org", false); err == nil || !strings.Contains(err.Error(), "example.org") {
		t.Errorf("a zone that is not there: %v", err)
	}
}

// Removing a name also removes the remaining challenge record of a terminated balancer.
func TestRemovedNameRemovesChallenge(t *testing.T) {
	setAccount(t)
	a, n := newAccount(), chat(record("lb-us-0", "aws/us-east-1", "198.51.100.1"))
	a.poll = time.Nanosecond
	a.set(t, n)
	c := a.client(t).Challenges("example.com", a.zone, false)
	for _, name := range []string{challengeName, "_acme-challenge.other.example.com"} {
		if err := c.SetTXT(t.Context(), name, "left", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	a.set(t, n)
	if a.values(challengeName) == nil {
		t.Error("a name that stays lost the record of its challenge")
	}
	n.Records = nil
	a.set(t, n)
	if got := a.values(challengeName); got != nil {
		t.Errorf("the challenge record remains: %q", got)
	}
	if a.values("_acme-challenge.other.example.com") == nil {
		t.Error("another name lost the record of its challenge")
	}
}
