package dns

import (
	"context"
	"encoding/pem"
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
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// fataler is a testing.T or a rapid.T.
type fataler interface {
	Context() context.Context
	Fatal(args ...any)
	Helper()
}

func regionOf(s string) service.Region { return service.Region(s) }

// set sets a name with a new client.
func (a *account) set(t fataler, n provision.PublicName) {
	t.Helper()
	if err := a.client(t).Set(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// drawName draws a name of the service: some records in a few regions.
func drawName(t *rapid.T) provision.PublicName {
	n := chat()
	n.Routing = rapid.SampledFrom([]provision.DNSRouting{provision.RoutingLatency, provision.RoutingGeo}).Draw(t, "routing")
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

// Whatever the previous state, Set changes a name to match, Get returns it, and a second Set writes
// nothing.
func TestSetConverges(t *testing.T) {
	setAccount(t)
	rapid.Check(t, func(t *rapid.T) {
		a, fresh := newAccount(), newAccount()
		a.poll, fresh.poll = time.Nanosecond, time.Nanosecond // fake time
		a.fake.PageSize = rapid.IntRange(1, 4).Draw(t, "page")
		var n provision.PublicName
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
			want = provision.PublicName{Name: n.Name, Zone: n.Zone}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("read %+v, %v; want %+v", got, err, want)
		}
		a.faults.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
			if !c.ReadOnly {
				t.Errorf("setting it again did %s", c.Action)
			}
			return testcloud.Served
		}
		a.set(t, n)
	})
}

// Clients get the balancers of the nearest region with a healthy one. Withdrawn records are never
// served, unhealthy ones only when all are unhealthy.
func TestClientsGetNearestHealthyBalancers(t *testing.T) {
	setAccount(t)
	near := map[string][]string{ // for a client in the region
		"new york": {"us-east-1", "eu-west-3", "ap-northeast-1"}, "lyon": {"eu-west-3", "us-east-1", "ap-northeast-1"},
	}
	withdraw := func(ids ...string) func(*provision.PublicName) {
		return func(n *provision.PublicName) {
			for i := range n.Records {
				n.Records[i].Withdrawn = slices.Contains(ids, n.Records[i].ID)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*provision.PublicName)
		sick   []string
		from   string
		want   string
	}{
		{"both balancers and the neighbour of another cloud", nil, nil, "new york", "198.51.100.1 198.51.100.2 198.51.100.3"},
		{"the other side", nil, nil, "lyon", "203.0.113.1"},
		{"one is withdrawn", withdraw("lb-us-0"), nil, "new york", "198.51.100.2 198.51.100.3"},
		{"the only one of its region is withdrawn", withdraw("lb-eu-0"), nil, "lyon", "198.51.100.1 198.51.100.2 198.51.100.3"},
		{"all are withdrawn", withdraw("lb-eu-0", "lb-us-0", "lb-us-1", "lb-us-east4-0"), nil, "lyon", ""},
		{"one unhealthy", nil, []string{"198.51.100.2"}, "new york", "198.51.100.1 198.51.100.3"},
		{"unhealthy region", nil, []string{"203.0.113.1"}, "lyon", "198.51.100.1 198.51.100.2 198.51.100.3"},
		{"all unhealthy", nil, []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "203.0.113.1"}, "lyon", "203.0.113.1"},
		{"unhealthy records before withdrawn ones", withdraw("lb-us-0", "lb-us-1"), []string{"198.51.100.3", "203.0.113.1"}, "new york", "198.51.100.3"},
		{"geo routing", func(n *provision.PublicName) { n.Routing = provision.RoutingGeo }, nil, "lyon", "203.0.113.1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, n := newAccount(), world()
			a.set(t, n)
			if tt.change != nil {
				tt.change(&n)
				a.set(t, n)
			}
			for _, addr := range tt.sick {
				a.fake.SetAddressHealth(netip.MustParseAddr(addr), false)
			}
			got := fmt.Sprint(a.fake.ResolveName(a.zone, n.Name, near[tt.from]...))
			if got != "["+tt.want+"]" {
				t.Errorf("%s: %s is given %s, want %s", tt.name, tt.from, got, tt.want)
			}
		})
	}
}

// After a crash at any call, before or after its execution, another run can complete or remove the name,
// without remaining resources.
func TestRecoversFromCrashAtAnyCall(t *testing.T) {
	testkit.Slow(t)
	setAccount(t)
	whole := newAccount()
	synctest.Test(t, func(t *testing.T) {
		if err := runScenario(t, whole); err != nil {
			t.Fatal(err)
		}
	})
	calls := 0
	for _, n := range whole.faults.CallCounts() {
		calls += n
	}
	for at := 1; at <= calls; at += testkit.Stride(7) {
		for _, outcome := range []testcloud.Outcome{testcloud.RequestLost, testcloud.ResponseLost} {
			synctest.Test(t, func(t *testing.T) {
				a := newAccount()
				a.faults.StaleLists = at % 3
				a.faults.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
					switch {
					case c.Number == at:
						return outcome
					case c.Number > at:
						return testcloud.RequestLost
					}
					return testcloud.Served
				}
				if err := runScenario(t, a); err == nil {
					t.Fatalf("call %d: nothing failed", at)
				}
				a.faults.DecideOutcome = nil
				scenario(t, a)
			})
		}
	}
}

// runScenario publishes a name, changes it and removes it.
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

// scenario is runScenario, with checks after each step.
func scenario(t *testing.T, a *account) {
	t.Helper()
	a.set(t, world())
	if checks, _ := a.fake.HealthChecks(); a.faults.StaleLists == 0 && len(checks) != 4 { // stale lists contain deleted records
		t.Fatalf("there are %d health checks for 4 records", len(checks))
	}
	if err := runScenario(t, a); err != nil {
		t.Fatal(err)
	}
	if left := a.end(); len(left) != 0 {
		t.Fatalf("leftovers:\n%s", strings.Join(left, "\n"))
	}
}

// A health check that lists do not contain yet is not created again.
func TestStaleListCreatesNoDuplicates(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		a.faults.StaleLists = 5
		made := false
		a.faults.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
			if made {
				return testcloud.RequestLost
			}
			made = c.Action == "route53:CreateHealthCheck"
			return testcloud.Served
		}
		if err := a.client(t).Set(t.Context(), world()); err == nil {
			t.Fatal("nothing failed")
		}
		a.faults.DecideOutcome = nil
		a.set(t, world())
		if checks, _ := a.fake.HealthChecks(); len(checks) != 4 {
			t.Errorf("there are %d health checks for 4 records", len(checks))
		}
	})
}

// Occasional lost responses and rejected calls are not failures.
func TestFailedCallsAreRetried(t *testing.T) {
	setAccount(t)
	for _, outcome := range []testcloud.Outcome{testcloud.Throttled, testcloud.InternalError, testcloud.RequestLost, testcloud.ResponseLost} {
		synctest.Test(t, func(t *testing.T) {
			a, fresh := newAccount(), newAccount()
			a.fake.PendingPolls = 3
			a.faults.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
				if c.Number%2 == 1 {
					return outcome
				}
				return testcloud.Served
			}
			a.set(t, world())
			fresh.set(t, world())
			if got, want := a.end(), fresh.end(); !reflect.DeepEqual(got, want) {
				t.Errorf("outcome %d: got %q, want %q", outcome, got, want)
			}
		})
	}
}

// Manual changes of health checks are repaired.
func TestHealthChecksAreRepaired(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		a.set(t, world())
		a.fake.EditHealthChecks(func(c *testcloud.HealthCheckConfig) { c.Disabled, c.Inverted, c.Port = true, true, 9 })
		a.set(t, world())
		checks, _ := a.fake.HealthChecks()
		for i, c := range checks {
			want := testcloud.HealthCheckConfig{
				IPAddress: world().Records[i].Address.String(), Port: 8000, Type: "HTTP", ResourcePath: "/readyz",
				FullyQualifiedDomainName: "chat.example.com", RequestInterval: 10, FailureThreshold: 3,
			}
			if c.HealthCheckConfig != want {
				t.Errorf("got %+v, want %+v", c.HealthCheckConfig, want)
			}
		}
	})
}

// A private hosted zone may have the name of a public one.
func TestPrivateZones(t *testing.T) {
	setAccount(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAccount()
		private := a.fake.AddZone("example.com", true)
		n := chat(record("lb-us-0", "aws/us-east-1", "10.1.0.7"))
		n.Private = true
		a.set(t, n)
		if checks, _ := a.fake.HealthChecks(); len(checks) != 0 {
			t.Errorf("a private address is checked: %+v", checks)
		}
		if got := fmt.Sprint(a.fake.ResolveName(private, n.Name, "us-east-1")); got != "[10.1.0.7]" || len(a.fake.RecordSets(a.zone)) > 0 {
			t.Errorf("given %s; in the public zone: %v", got, a.fake.RecordSets(a.zone))
		}
		if got, err := a.client(t).Get(t.Context(), n.Zone, n.Name); err != nil || !reflect.DeepEqual(got, n) {
			t.Errorf("read %+v, %v", got, err)
		}
	})
}

// The settings of AWS's own tools apply: the endpoint, and the trusted certificate authorities.
func TestAWSEnvironmentSettings(t *testing.T) {
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
