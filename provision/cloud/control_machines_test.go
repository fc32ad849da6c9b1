package cloud_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// controlCandidates reads "ID region/zone [dead] [spot]" lines, separated by commas.
func controlCandidates(text string) (all []cloud.BalancerMachine) {
	for _, line := range strings.Split(text, ",") {
		f := strings.Fields(line)
		region, zone, _ := strings.Cut(f[1], "/")
		all = append(all, cloud.BalancerMachine{
			ID: f[0], Region: service.Region("aws/" + region), Zone: zone, Alive: !slices.Contains(f, "dead"), Spot: slices.Contains(f, "spot"),
		})
	}
	return all
}

func TestChooseControlMachines(t *testing.T) {
	for name, c := range map[string]struct {
		candidates, current, want string
	}{
		"one balancer":                      {"a us", "", "a"},
		"two balancers":                     {"a us, b eu", "", "a"},
		"two, the second has it":            {"a us, b eu", "b", "b"},
		"three regions":                     {"a us, b eu, c asia", "", "a b c"},
		"regions before zones":              {"a us/1, b us/2, c eu/1, d asia/1", "", "a c d"},
		"two regions, then zones":           {"a us/1, b us/1, c us/2, d eu/1", "", "a d c"},
		"one region, zones":                 {"a us/1, b us/1, c us/2, d us/3", "", "a c d"},
		"one region, one zone":              {"a us/1, b us/1, c us/1, d us/1", "", "a b c"},
		"spot machines are not used":        {"a us spot, b us, c eu, d asia", "", "b c d"},
		"too few without spot":              {"a us spot, b us, c eu", "", "b"},
		"only spot machines":                {"a us spot, b us spot, c eu spot", "", "a"},
		"members stay":                      {"a us/1, b us/1, c us/1, d eu, e asia", "c b a", "c b a"},
		"a member that is spot now leaves":  {"a us spot, b us, c eu, d asia", "a c d", "c d b"},
		"a dead member is replaced":         {"a us dead, b eu, c asia, d us", "a b c", "b c d"},
		"only one machine can replace it":   {"a us, b eu dead, c asia, d asia", "a b c", "a c d"},
		"nothing can replace a dead member": {"a us dead, b eu, c asia", "a b c", "b c a"},
		"two dead members":                  {"a us dead, b eu dead, c asia", "a b c", "c a b"},
		"all dead":                          {"a us dead, b eu dead, c asia dead", "", "a b c"},
		"from one to three":                 {"a us, b eu, c asia", "b", "b a c"},
		"from three to one":                 {"a us, b eu", "c b a", "b"},
		"a member that is not a balancer":   {"a us, b eu, c asia", "x a", "a b c"},
		"from three to one, the first dead": {"a us dead, b eu", "a b", "b"},
	} {
		if got := strings.Join(cloud.ChooseControlMachines(controlCandidates(c.candidates), strings.Fields(c.current)), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// drawControl draws candidates and current members.
func drawControl(t *rapid.T) (all []cloud.BalancerMachine, current []string) {
	for i := range rapid.IntRange(1, 7).Draw(t, "machines") {
		all = append(all, cloud.BalancerMachine{
			ID: fmt.Sprint("m", i), Region: service.Region(rapid.SampledFrom([]string{"us", "eu", "asia", "sa"}).Draw(t, "region")),
			Zone: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "zone"), Alive: rapid.IntRange(0, 4).Draw(t, "alive") > 0, Spot: rapid.IntRange(0, 4).Draw(t, "spot") == 0,
		})
		if rapid.Bool().Draw(t, "member") {
			current = append(current, all[i].ID)
		}
	}
	return all, rapid.Permutation(current).Draw(t, "current")
}

// spread returns the numbers of regions and of zones of a set of candidates, as one number.
func spread(set []cloud.BalancerMachine) int {
	regions, zones := map[string]bool{}, map[string]bool{}
	for _, c := range set {
		regions[string(c.Region)], zones[string(c.Region)+"/"+c.Zone] = true, true
	}
	return 10*len(regions) + len(zones)
}

// The choice has the right size, keeps the members that may stay, has no dead machine if a live one could replace it, has
// machines in as many regions and zones as the members that stay allow, and does not change when it is made again.
func TestChooseControlMachinesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, current := drawControl(t)
		ids := cloud.ChooseControlMachines(all, current)
		var suitable, alive, chosen, stay []cloud.BalancerMachine
		for _, c := range all {
			if c.Spot {
				continue
			}
			suitable = append(suitable, c)
			if c.Alive {
				alive = append(alive, c)
			}
			if slices.Contains(ids, c.ID) {
				chosen = append(chosen, c)
			}
		}
		if len(suitable) < cloud.ControlMachineCount {
			if len(ids) != 1 {
				t.Fatalf("got %q, want one", ids)
			}
			return
		}
		if len(chosen) != cloud.ControlMachineCount || len(ids) != cloud.ControlMachineCount {
			t.Fatalf("got %q, want three without spot", ids)
		}
		for _, id := range current {
			i := slices.IndexFunc(alive, func(c cloud.BalancerMachine) bool { return c.ID == id })
			if i >= 0 && len(stay) < cloud.ControlMachineCount {
				stay = append(stay, alive[i])
				if !slices.Contains(ids, id) {
					t.Fatalf("%s left, got %q", id, ids)
				}
			}
		}
		if dead := slices.ContainsFunc(chosen, func(c cloud.BalancerMachine) bool { return !c.Alive }); dead && len(alive) >= cloud.ControlMachineCount {
			t.Fatalf("got a dead machine in %q", ids)
		}
		if best := bestSpread(alive, stay); len(alive) >= cloud.ControlMachineCount && spread(chosen) != best {
			t.Fatalf("%q has spread %d, want %d", ids, spread(chosen), best)
		}
		if again := cloud.ChooseControlMachines(all, ids); !slices.Equal(again, ids) {
			t.Fatalf("got %q, then %q", ids, again)
		}
	})
}

// bestSpread returns the spread of the best set of three that contains stay: all sets are tried.
func bestSpread(alive, stay []cloud.BalancerMachine) (best int) {
	for bits := range 1 << len(alive) {
		var set []cloud.BalancerMachine
		for i, c := range alive {
			if bits>>i&1 == 1 {
				set = append(set, c)
			}
		}
		missing := slices.ContainsFunc(stay, func(c cloud.BalancerMachine) bool { return !slices.Contains(set, c) })
		if len(set) == cloud.ControlMachineCount && !missing {
			best = max(best, spread(set))
		}
	}
	return best
}

// Candidates are the balancers of service.yaml with their machines, in its order.
func TestControlCandidates(t *testing.T) {
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "aws/us-east-1", Balancers: 2}, {Name: "static/paris"}, {Name: "gcp/europe-west4", Balancers: 1}}}
	have := []provision.Object{
		{ID: "lb-us-east-1-1", Kind: provision.KindBalancer, Offering: &provision.Offering{Zone: "us-east-1b", Capacity: service.CapacitySpot}},
		{ID: "lb-us-east-1-0", Kind: provision.KindBalancer, TerminatedReason: "crashed"},
		{ID: "lb-europe-west4-0", Kind: provision.KindBalancer},
		{ID: "lb-europe-west4-1", Kind: provision.KindBalancer}, // no longer in service.yaml
	}
	want := []cloud.BalancerMachine{
		{ID: "lb-us-east-1-0", Region: "aws/us-east-1"},
		{ID: "lb-us-east-1-1", Region: "aws/us-east-1", Zone: "us-east-1b", Alive: true, Spot: true},
		{ID: "lb-europe-west4-0", Region: "gcp/europe-west4", Alive: true},
	}
	if got := cloud.ControlCandidates(spec, have); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The firewalls of balancers admit the members of the store's cluster in other networks, once these have addresses.
func TestPeersOfTheStore(t *testing.T) {
	spec := parse(t, threeRegions)
	var have []provision.Object
	for i, id := range []string{"lb-us-east-1-0", "lb-europe-west4-0", "lb-ap-northeast-1-0", "lb-ap-northeast-1-1"} {
		region := service.Region("aws/" + id[3:len(id)-2])
		if i == 1 {
			region = "gcp/europe-west4"
		}
		have = append(have, provision.Object{ID: id, Kind: provision.KindBalancer, Region: region, PublicIP: netip.AddrFrom4([4]byte{198, 18, 0, byte(i)})})
	}
	have = append(have, provision.Object{ID: "us-east-1-0", Kind: provision.KindReplica, Region: "aws/us-east-1", PublicIP: netip.MustParseAddr("198.18.0.9")})
	firewalls := func() map[string]string {
		in, peers := input(spec), map[string]string{}
		in.Have = have
		for _, w := range plan(t, in).Desired {
			if slices.Contains(w.Rules, provision.FirewallRule{Port: cloud.PortRoutes, From: provision.FromSameRole}) {
				peers[w.ID] = fmt.Sprint(w.SameRole) + w.SpecHash
			}
		}
		return peers
	}
	all := firewalls()
	for id, want := range map[string]string{
		"firewall-us-east-1-balancer":      "[198.18.0.1 198.18.0.2 198.18.0.3]",
		"firewall-europe-west4-balancer":   "[198.18.0.0 198.18.0.2 198.18.0.3]",
		"firewall-ap-northeast-1-balancer": "[198.18.0.0 198.18.0.1]",
	} {
		if len(all) != 3 || !strings.HasPrefix(all[id], want) {
			t.Errorf("%s: got %s, want %s; %d firewalls", id, all[id], want, len(all))
		}
	}
	have[3].TerminatedReason = "terminated"
	if next := firewalls(); next["firewall-us-east-1-balancer"] == all["firewall-us-east-1-balancer"] || next["firewall-ap-northeast-1-balancer"] != all["firewall-ap-northeast-1-balancer"] {
		t.Errorf("after the end of a machine: got %v, before %v", next, all)
	}
	spec.Store.URL = "nats://store.example.com:4222"
	if got := firewalls(); len(got) != 0 {
		t.Errorf("with an existing NATS cluster: got %v", got)
	}
	spec.Store.URL, spec.Regions = "", spec.Regions[:2]
	if got := firewalls(); len(got) != 0 {
		t.Errorf("with two balancers: got %v", got)
	}
}
