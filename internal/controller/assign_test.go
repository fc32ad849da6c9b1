package controller

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
)

// drawFleet draws up to four regions with up to three balancers each, any of them dead, and
// replicas whose homes are among them.
func drawFleet(t *rapid.T) AssignInput {
	f := AssignInput{RTT: map[string]time.Duration{}}
	places := []string{"us", "eu", "asia", "au"}[:rapid.IntRange(1, 4).Draw(t, "regions")]
	for i, a := range places {
		for _, b := range places[:i] {
			if rapid.Bool().Draw(t, "stated") {
				f.RTT[a+"-"+b] = time.Duration(rapid.IntRange(1, 3).Draw(t, "rtt")) * time.Millisecond
			}
		}
		region := service.Region("local/" + a)
		for n := range rapid.IntRange(1, 3).Draw(t, "balancers") {
			b := BalancerHealth{ID: fmt.Sprintf("lb-%s-%d", a, n), Region: region, Alive: rapid.Bool().Draw(t, "alive")}
			f.Balancers = append(f.Balancers, b)
			for r := range rapid.IntRange(0, 3).Draw(t, "replicas") {
				f.Replicas = append(f.Replicas, service.ControlledReplica{
					ReplicaConfig: service.ReplicaConfig{ID: fmt.Sprintf("%s-%d-%d", a, n, r), Region: region}, Primary: b.ID,
				})
			}
		}
	}
	return f
}

// with returns the fleet with one balancer alive or dead.
func (in AssignInput) with(i int, alive bool) AssignInput {
	balancers := append([]BalancerHealth{}, in.Balancers...)
	balancers[i].Alive = alive
	in.Balancers = balancers
	return in
}

func (in AssignInput) byID() map[string]BalancerHealth {
	all := map[string]BalancerHealth{}
	for _, b := range in.Balancers {
		all[b.ID] = b
	}
	return all
}

// A balancer that has never responded may still be booting: it keeps its replicas and gets none of another live one.
func TestAssignMovesNoReplicaToNewBalancer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		responding := false
		for i := range f.Balancers {
			b := &f.Balancers[i]
			b.New = rapid.Bool().Draw(t, "new")
			responding = responding || b.Alive && !b.New
		}
		f.Owners = map[string]string{}
		for _, r := range f.Replicas {
			f.Owners[r.ID] = rapid.SampledFrom(f.Balancers).Draw(t, "owner").ID
		}
		balancers := f.byID()
		for _, r := range f.Replicas {
			before, after := balancers[f.Owners[r.ID]], balancers[Assign(f)[r.ID]]
			if before.Alive && responding && after.New && after.ID != before.ID {
				t.Fatalf("%s moves from %s to %s, which has never responded", r.ID, before.ID, after.ID)
			}
			if before.Alive && before.ID == r.Primary && after.ID != before.ID {
				t.Fatalf("%s leaves its live primary balancer %s", r.ID, before.ID)
			}
		}
	})
}

func TestAssignGivesEveryReplicaALiveOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		owners, balancers := Assign(f), f.byID()
		anyAlive := false
		for _, b := range f.Balancers {
			anyAlive = anyAlive || b.Alive
		}
		if !anyAlive {
			if owners != nil {
				t.Fatalf("no live balancer, but got %v", owners)
			}
			return
		}
		if len(owners) != len(f.Replicas) {
			t.Fatalf("got %d owners of %d replicas", len(owners), len(f.Replicas))
		}
		for id, owner := range owners {
			if !balancers[owner].Alive {
				t.Fatalf("%s belongs to %s, which is dead", id, owner)
			}
		}
	})
}

func TestAssignPrefersPrimaryThenNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		owners, balancers := Assign(f), f.byID()
		if owners == nil {
			return
		}
		for _, r := range f.Replicas {
			if balancers[r.Primary].Alive {
				if owners[r.ID] != r.Primary {
					t.Fatalf("%s: got %s, want its primary balancer", r.ID, owners[r.ID])
				}
				continue
			}
			got := f.distance(r.Region, balancers[owners[r.ID]].Region)
			for _, b := range f.Balancers {
				if d := f.distance(r.Region, b.Region); b.Alive && d < got {
					t.Fatalf("%s: got %s at %s, but %s is at %s", r.ID, owners[r.ID], got, b.ID, d)
				}
			}
		}
	})
}

func TestAssignMovesOnlyAffectedReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		i := rapid.IntRange(0, len(f.Balancers)-1).Draw(t, "which")
		id := f.Balancers[i].ID
		alive, dead := Assign(f.with(i, true)), Assign(f.with(i, false))
		if dead == nil {
			return
		}
		for replica, owner := range alive {
			if owner != id && dead[replica] != owner {
				t.Fatalf("%s died and %s moved from %s to %s", id, replica, owner, dead[replica])
			}
		}
		if back := Assign(f.with(i, false).with(i, true)); !maps.Equal(back, alive) {
			t.Fatalf("%s came back: got %v, want %v", id, back, alive)
		}
	})
}

func TestAssignIsIndependentOfOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFleet(t)
		want := Assign(f)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		rng.Shuffle(len(f.Balancers), func(i, j int) { f.Balancers[i], f.Balancers[j] = f.Balancers[j], f.Balancers[i] })
		rng.Shuffle(len(f.Replicas), func(i, j int) { f.Replicas[i], f.Replicas[j] = f.Replicas[j], f.Replicas[i] })
		if got := Assign(f); !maps.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestAssignSpreadsReplicasOfDeadBalancer(t *testing.T) {
	f := AssignInput{}
	for i := range 4 {
		f.Balancers = append(f.Balancers, BalancerHealth{ID: fmt.Sprint("lb-us-", i), Region: "local/us", Alive: i > 0})
	}
	for i := range 300 {
		f.Replicas = append(f.Replicas, service.ControlledReplica{ReplicaConfig: service.ReplicaConfig{ID: fmt.Sprint("us-", i), Region: "local/us"}, Primary: "lb-us-0"})
	}
	counts := map[string]int{}
	for _, owner := range Assign(f) {
		counts[owner]++
	}
	for i := 1; i < 4; i++ {
		if n := counts[fmt.Sprint("lb-us-", i)]; n < 70 || n > 130 {
			t.Errorf("lb-us-%d got %d of 300, want about 100", i, n)
		}
	}
}

func TestAssignAdoptsReplicaOfUnknownPrimary(t *testing.T) {
	f := AssignInput{
		Balancers: []BalancerHealth{{ID: "lb-us-0", Region: "local/us", Alive: true}, {ID: "lb-eu-0", Region: "local/eu", Alive: true}},
		Replicas:  []service.ControlledReplica{{ReplicaConfig: service.ReplicaConfig{ID: "us-0", Region: "local/us"}, Primary: "lb-us-9"}},
	}
	if got := Assign(f)["us-0"]; got != "lb-us-0" {
		t.Errorf("got %s, want the balancer of its own region", got)
	}
}

// Without a known round trip a replica stays in its cloud, because networks do not connect clouds.
func TestAssignPrefersSameCloud(t *testing.T) {
	for n := range 20 {
		id := fmt.Sprint("europe-west4-", n)
		f := AssignInput{
			Balancers: []BalancerHealth{
				{ID: "lb-us-east-1-0", Region: "aws/us-east-1", Alive: true},
				{ID: "lb-europe-west4-0", Region: "gcp/europe-west4"},
				{ID: "lb-us-central1-0", Region: "gcp/us-central1", Alive: true},
				{ID: "lb-eu-west-1-0", Region: "aws/eu-west-1", Alive: true},
			},
			Replicas: []service.ControlledReplica{{ReplicaConfig: service.ReplicaConfig{ID: id, Region: "gcp/europe-west4"}, Primary: "lb-europe-west4-0"}},
		}
		if got := Assign(f)[id]; got != "lb-us-central1-0" {
			t.Errorf("%s: got %s, want the balancer of its own cloud", id, got)
		}
	}
}
