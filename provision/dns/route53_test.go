package dns

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/fakecloud"
)

// fataler is a test, or a drawn one.
type fataler interface {
	Context() context.Context
	Fatal(args ...any)
	Helper()
}

func regionOf(s string) service.Region { return service.Region(s) }

// set makes a name so by a program of its own.
func (a *account) set(t fataler, n provision.Name) {
	t.Helper()
	if err := a.client(t).Set(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// drawName draws a name of the service: some records in a few regions.
func drawName(t *rapid.T) provision.Name {
	n := chat()
	n.Routing = rapid.SampledFrom([]provision.Routing{provision.RoutingLatency, provision.RoutingGeo}).Draw(t, "routing")
	n.TTL = rapid.SampledFrom([]time.Duration{5 * time.Second, 30 * time.Second}).Draw(t, "ttl")
	regions := []string{"aws/us-east-1", "gcp/us-east4", "gcp/europe-west4", "static/tokyo"}
	addrs := []string{"198.51.100.%d", "2001:db8::%d", "10.0.0.%d"}
	for i := range rapid.IntRange(0, 5).Draw(t, "records") {
		if rapid.Bool().Draw(t, "left out") {
			continue
		}
		addr := fmt.Sprintf(rapid.SampledFrom(addrs).Draw(t, "addr"), i+1)
		r := record(fmt.Sprintf("lb-%d", i), rapid.SampledFrom(regions).Draw(t, "region"), addr)
		r.Withdrawn = rapid.Bool().Draw(t, "withdrawn")
		if rapid.IntRange(0, 3).Draw(t, "check") == 0 {
			r.Check = ""
		}
		n.Records = append(n.Records, r)
	}
	return n
}

// Whatever a name was before, Set makes it what it should be, Get reads it so, and
// setting it again writes nothing.
func TestANameBecomesWhatItShould(t *testing.T) {
	setAccount(t)
	rapid.Check(t, func(t *rapid.T) {
		a, fresh := newAccount(), newAccount()
		a.poll, fresh.poll = time.Nanosecond, time.Nanosecond // rapid keeps the time of the world
		a.fake.PageSize = rapid.IntRange(1, 4).Draw(t, "page")
		var n provision.Name
		for range rapid.IntRange(1, 4).Draw(t, "times") {
			n = drawName(t)
			a.set(t, n)
		}
		fresh.set(t, n)
		if got, want := a.end(), fresh.end(); !reflect.DeepEqual(got, want) {
			t.Fatalf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		got, err := a.client(t).Get(t.Context(), n.Zone, n.Name)
		want := n
		if len(n.Records) == 0 {
			want = provision.Name{Name: n.Name, Zone: n.Zone}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("read %+v, %v; want %+v", got, err, want)
		}
		a.faults.Decide = func(c fakecloud.Call) fakecloud.Outcome {
			if !c.Reads {
				t.Errorf("setting it again did %s", c.Action)
			}
			return fakecloud.Served
		}
		a.set(t, n)
	})
}

// Clients are given the balancers of the nearest region that has a healthy one;
// what is withdrawn is given to nobody, and what is sick to nobody while others
// are well.
func TestWhatClientsAreGiven(t *testing.T) {
	setAccount(t)
	near := map[string][]string{ // to a client there
		"new york": {"us-east-1", "eu-west-3", "ap-northeast-1"}, "lyon": {"eu-west-3", "us-east-1", "ap-northeast-1"},
	}
	withdraw := func(ids ...string) func(*provision.Name) {
		return func(n *provision.Name) {
			for i := range n.Records {
				n.Records[i].Withdrawn = slices.Contains(ids, n.Records[i].ID)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*provision.Name)
		sick   []string
		from   string
		want   string
	}{
		{"both balancers and the neighbour of another cloud", nil, nil, "new york", "198.51.100.1 198.51.100.2 198.51.100.3"},
		{"the other side", nil, nil, "lyon", "203.0.113.1"},
		{"one is withdrawn", withdraw("lb-us-0"), nil, "new york", "198.51.100.2 198.51.100.3"},
		{"the only one of its region is withdrawn", withdraw("lb-eu-0"), nil, "lyon", "198.51.100.1 198.51.100.2 198.51.100.3"},
		{"all are withdrawn", withdraw("lb-eu-0", "lb-us-0", "lb-us-1", "lb-us-east4-0"), nil, "lyon", ""},
		{"one is sick", nil, []string{"198.51.100.2"}, "new york", "198.51.100.1 198.51.100.3"},
		{"the region is sick", nil, []string{"203.0.113.1"}, "lyon", "198.51.100.1 198.51.100.2 198.51.100.3"},
		{"all are sick", nil, []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "203.0.113.1"}, "lyon", "203.0.113.1"},
		{"sick ones are given before withdrawn ones", withdraw("lb-us-0", "lb-us-1"), []string{"198.51.100.3", "203.0.113.1"}, "new york", "198.51.100.3"},
		{"by nearness", func(n *provision.Name) { n.Routing = provision.RoutingGeo }, nil, "lyon", "203.0.113.1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, n := newAccount(), world()
			a.set(t, n)
			if tt.change != nil {
				tt.change(&n)
				a.set(t, n)
			}
			for _, addr := range tt.sick {
				a.fake.SetHealth(netip.MustParseAddr(addr), false)
			}
			got := fmt.Sprint(a.fake.Answers(a.zone, n.Name, near[tt.from]...))
			if got != "["+tt.want+"]" {
				t.Errorf("%s: %s is given %s, want %s", tt.name, tt.from, got, tt.want)
			}
		})
	}
}

// A program that ends at any call, before it was done or after, leaves a name that
// another run completes and another removes, with nothing left over.
func TestAnEndAtAnyCallIsMended(t *testing.T) {
	setAccount(t)
	whole := newAccount()
	synctest.Test(t, func(t *testing.T) {
		if err := runScenario(t, whole); err != nil {
			t.Fatal(err)
		}
	})
	calls := 0
	for _, n := range whole.faults.Actions() {
		calls += n
	}
	for at := 1; at <= calls; at++ {
		for _, outcome := range []fakecloud.Outcome{fakecloud.Refused, fakecloud.Lost} {
			synctest.Test(t, func(t *testing.T) {
				a := newAccount()
				a.faults.Unseen = at % 3
				a.faults.Decide = func(c fakecloud.Call) fakecloud.Outcome {
					switch {
					case c.Number == at:
						return outcome
					case c.Number > at:
						return fakecloud.Refused
					}
					return fakecloud.Served
				}
				if err := runScenario(t, a); err == nil {
					t.Fatalf("call %d: nothing failed", at)
				}
				a.faults.Decide = nil
				scenario(t, a)
			})
		}
	}
}

// runScenario publishes a name, changes it and takes it away.
func runScenario(t *testing.T, a *account) error {
	n := world()
	z := a.client(t)
	if err := z.Set(t.Context(), n); err != nil {
		return err
	}
	n.Records = n.Records[1:]
	n.Records[0].Address, n.Records[0].Check = netip.MustParseAddr("198.51.100.9"), "https://198.51.100.9/readyz"
	n.Records[1].Withdrawn = true
	if err := z.Set(t.Context(), n); err != nil {
		return err
	}
	return z.Set(t.Context(), chat())
}

// scenario is runScenario, looking at what there is on the way.
func scenario(t *testing.T, a *account) {
	t.Helper()
	a.set(t, world())
	if checks, _ := a.fake.Checks(); a.faults.Unseen == 0 && len(checks) != 4 { // lists that lag show what is over only later
		t.Fatalf("there are %d health checks for 4 records", len(checks))
	}
	if err := runScenario(t, a); err != nil {
		t.Fatal(err)
	}
	if left := a.end(); len(left) != 0 {
		t.Fatalf("left over:\n%s", strings.Join(left, "\n"))
	}
}

// An answer that is lost and a call that is refused now and then are no failure.
func TestCallsThatFailAreTriedAgain(t *testing.T) {
	setAccount(t)
	for _, outcome := range []fakecloud.Outcome{fakecloud.Throttled, fakecloud.Broken, fakecloud.Refused, fakecloud.Lost} {
		synctest.Test(t, func(t *testing.T) {
			a, fresh := newAccount(), newAccount()
			a.fake.PendingPolls = 3
			a.faults.Decide = func(c fakecloud.Call) fakecloud.Outcome {
				if c.Number%2 == 1 {
					return outcome
				}
				return fakecloud.Served
			}
			a.set(t, world())
			fresh.set(t, world())
			if got, want := a.end(), fresh.end(); !reflect.DeepEqual(got, want) {
				t.Errorf("outcome %d: got %q, want %q", outcome, got, want)
			}
		})
	}
}

// byHand is a record set that somebody made in the console.
func byHand(name, kind, value string) fakecloud.RecordSet {
	ttl := int64(300)
	return fakecloud.RecordSet{Name: name, Type: kind, TTL: &ttl, ResourceRecords: &fakecloud.Values{ResourceRecord: []fakecloud.Value{{Value: value}}}}
}

// A name that is not this owner's is left as it is, whatever is wanted of it.
func TestWhatIsNotOursIsLeftAlone(t *testing.T) {
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
		}, "made by hand: chat.example.com A 192.0.2.1"},
		{"an alias of a name", func(_ *testing.T, a *account) error {
			return a.fake.AddRecords(a.zone, byHand("chat.example.com", "CNAME", "other.example.org."))
		}, "made by hand: chat.example.com CNAME other.example.org."},
		{"a note", func(_ *testing.T, a *account) error {
			return a.fake.AddRecords(a.zone, byHand("_skyserve.chat.example.com", "TXT", `"hands off"`))
		}, `made by hand: _skyserve.chat.example.com TXT "hands off"`},
		{"a record below", func(_ *testing.T, a *account) error {
			return a.fake.AddRecords(a.zone, byHand("us-east-1._skyserve.chat.example.com", "A", "192.0.2.1"))
		}, "made by hand: us-east-1._skyserve.chat.example.com A 192.0.2.1"},
		{"a record beside ours", func(t *testing.T, a *account) error {
			a.set(t, world())
			return a.fake.AddRecords(a.zone, weighted)
		}, "made by hand: chat.example.com AAAA 2001:db8::7"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAccount()
			if err := tt.prepare(t, a); err != nil {
				t.Fatal(err)
			}
			before := a.end()
			changed := world()
			changed.Records[0].Withdrawn = true
			for _, n := range []provision.Name{changed, chat()} {
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

// Checking a name changes nothing, and finds nothing against one's own.
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
		if err := a.client(t).Check(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "no public zone of that name") {
			t.Errorf("got %v", err)
		}
	})
}

// Ours goes from beside what somebody made by hand.
func TestOursGoesFromBesideTheirs(t *testing.T) {
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

// Of two owners who publish a name at once, one gets it, and the other leaves no
// trace.
func TestTwoOwnersAtOnce(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		rival := world()
		rival.Owner = "cd34"
		a.faults.Hold = func(c fakecloud.Call) {
			if c.Action == "route53:ChangeResourceRecordSets" { // the rival is quicker between reading and writing
				a.faults.Hold = nil
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

// What somebody did to health checks is set right.
func TestHealthChecksAreSetRight(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		a.set(t, world())
		a.fake.Tamper(func(c *fakecloud.HealthCheckConfig) { c.Disabled, c.Inverted, c.Port = true, true, 9 })
		a.set(t, world())
		checks, _ := a.fake.Checks()
		for i, c := range checks {
			want := fakecloud.HealthCheckConfig{
				IPAddress: world().Records[i].Address.String(), Port: 8000, Type: "HTTP", ResourcePath: "/readyz",
				FullyQualifiedDomainName: "chat.example.com", RequestInterval: 10, FailureThreshold: 3,
			}
			if c.HealthCheckConfig != want {
				t.Errorf("got %+v, want %+v", c.HealthCheckConfig, want)
			}
		}
	})
}

// A zone that only networks of AWS know may have the name of a public one.
func TestPrivateZones(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		private := a.fake.AddZone("example.com", true)
		n := chat(record("lb-us-0", "aws/us-east-1", "10.1.0.7"))
		n.Private = true
		a.set(t, n)
		if checks, _ := a.fake.Checks(); len(checks) != 0 {
			t.Errorf("a private address is checked: %+v", checks)
		}
		if got := fmt.Sprint(a.fake.Answers(private, n.Name, "us-east-1")); got != "[10.1.0.7]" || len(a.fake.RecordSets(a.zone)) > 0 {
			t.Errorf("given %s; in the public zone: %v", got, a.fake.RecordSets(a.zone))
		}
		if got, err := a.client(t).Get(t.Context(), n.Zone, n.Name); err != nil || !reflect.DeepEqual(got, n) {
			t.Errorf("read %+v, %v", got, err)
		}
	})
}

func TestAZoneThatIsNotThere(t *testing.T) {
	setAccount(t)
	for _, tt := range []struct {
		zones   []string
		private bool
		says    string
	}{
		{nil, false, "no public zone of that name; its zones are: none"},
		{[]string{"example.org", "chat.example.com"}, false, "its zones are: chat.example.com (public, Z000000000002), example.org (public, Z000000000001)"},
		{[]string{"example.com"}, true, "no private zone of that name; its zones are: example.com (public, Z000000000001)"},
		{[]string{"example.com", "example.com"}, false, "the account has several: example.com (public, Z000000000001) and example.com (public, Z000000000002)"},
	} {
		synctest.Test(t, func(t *testing.T) {
			faults := &fakecloud.Faults{}
			a := &account{faults: faults, fake: fakecloud.NewRoute53(faults)}
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

func TestWhoMayNot(t *testing.T) {
	setAccount(t)
	for _, tt := range []struct{ action, code, says string }{
		{"ListHostedZonesByName", "AccessDenied", "route53:ListHostedZonesByName is not allowed"},
		{"ChangeResourceRecordSets", "AccessDenied", "route53:ChangeResourceRecordSets is not allowed"},
		{"CreateHealthCheck", "AccessDeniedException", "route53:CreateHealthCheck is not allowed"},
		{"ListResourceRecordSets", "ExpiredToken", "no valid credentials"},
		{"ListHostedZonesByName", "InvalidClientTokenId", "no valid credentials"},
		{"ListHostedZonesByName", "SignatureDoesNotMatch", "no valid credentials"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAccount()
			a.fake.Deny = map[string]string{"route53:" + tt.action: tt.code}
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

// What no name can be made of is refused before anything is asked.
func TestNamesThatCannotBe(t *testing.T) {
	setAccount(t)
	for _, tt := range []struct {
		change func(*provision.Name)
		says   string
	}{
		{func(n *provision.Name) { n.Name = "chat.example.org" }, "is not in the zone example.com"},
		{func(n *provision.Name) { n.Name = strings.Repeat("a.", 110) + "example.com" }, "at most 220 characters"},
		{func(n *provision.Name) { n.Routing = "magic" }, `routing must be latency or geo, got "magic"`},
		{func(n *provision.Name) { n.Service = "a b" }, "plain words"},
		{func(n *provision.Name) { n.Records[1].ID = "lb-us-0" }, `two records have the id "lb-us-0"`},
		{func(n *provision.Name) { n.Records[0].ID = "" }, "plain word"},
		{func(n *provision.Name) { n.Records[0].Region = "static/basement" }, `record "lb-us-0": finding the region of AWS nearest to static/basement`},
		{func(n *provision.Name) { n.Records[0].Address = netip.Addr{} }, "no address"},
		{func(n *provision.Name) { n.Records[0].Check = "ftp://198.51.100.1/" }, "http or https URL"},
		{func(n *provision.Name) { n.Records[0].Check += strings.Repeat("x", 250) }, "must fit 255 characters"},
	} {
		a, n := newAccount(), world()
		tt.change(&n)
		if err := a.client(t).Set(t.Context(), n); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("got %v, want %s", err, tt.says)
		}
		if calls := a.faults.Actions(); len(calls) > 0 {
			t.Errorf("%s: asked %v", tt.says, calls)
		}
	}
}

// A context that ended changes nothing.
func TestAContextThatEnded(t *testing.T) {
	setAccount(t)
	a := newAccount()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.client(t).Set(ctx, world()); !errors.Is(err, context.Canceled) || len(a.end()) > 0 {
		t.Errorf("got %v, and there is %q", err, a.end())
	}
}

// The settings of AWS's own tools are honoured: another endpoint, and who is
// trusted to be it.
func TestTheEnvironmentOfAWS(t *testing.T) {
	setAccount(t)
	a := newAccount()
	server := httptest.NewTLSServer(a.fake.Handler())
	defer server.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	trusted := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(bundle, trusted, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", bundle)
	t.Setenv("AWS_ENDPOINT_URL", server.URL)
	z, err := NewRoute53(t.Context(), Config{Poll: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := z.Set(t.Context(), world()); err != nil || len(a.end()) == 0 {
		t.Errorf("got %v, and there is %q", err, a.end())
	}
}
