package provision_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
)

var nightBegins = time.Date(2026, 11, 24, 22, 0, 0, 0, time.UTC)

func nothingFree(service.Region) bool { return false }

// replicaOn returns a desired replica of model m on offerings with prices.
func replicaOn(id string, prices ...float64) provision.Desired {
	w := provision.Desired{ID: id, Kind: provision.KindReplica, Region: "aws/us-east-1", SpecHash: "s", Labels: map[string]string{"model": "m"}}
	for i, price := range prices {
		w.Offerings = append(w.Offerings, provision.Offering{Type: fmt.Sprintf("type%d", i), Region: w.Region, Capacity: service.CapacityOnDemand, PricePerHour: price})
	}
	if len(prices) > 0 {
		w.CostPerHour = prices[0]
	}
	return w
}

func launchOf(w provision.Desired) provision.Change {
	return provision.Change{Action: provision.ActionLaunch, Desired: w, CostPerHour: w.CostPerHour}
}

func TestGateHolds(t *testing.T) {
	now := nightBegins
	failed := provision.Backoff{BackoffKey: provision.BackoffKey{Model: "m", Region: "aws/us-east-1", Type: "type0", Capacity: service.CapacityOnDemand}, Last: now, Reason: "not ready within 45m"}
	full := provision.LaunchRecord{Launches: []provision.RecordedLaunch{{At: now.Add(-59 * time.Minute), ID: "a", Handle: "a"}, {At: now.Add(-time.Minute), ID: "b", Handle: "b"}}}
	var backed provision.LaunchRecord
	backed.AddFailure(failed, provision.BackoffPolicy{First: 5 * time.Minute, Max: time.Hour})
	for name, c := range map[string]struct {
		record provision.LaunchRecord
		bounds provision.LaunchBounds
		want   provision.Desired
		kind   provision.HoldKind
		text   string
	}{
		"unlimited":      {want: replicaOn("x", 9)},
		"launches":       {full, provision.LaunchBounds{LaunchesPerHour: 2}, replicaOn("x", 1), provision.HeldByLaunches, "2 machines launched in the last hour, the maximum (autoscale.max_launches_per_hour); next launch at 22:01:00 UTC"},
		"launches fit":   {record: full, bounds: provision.LaunchBounds{LaunchesPerHour: 3}, want: replicaOn("x", 1)},
		"budget":         {provision.LaunchRecord{}, provision.LaunchBounds{BudgetPerHour: 10}, replicaOn("x", 4.5), provision.HeldByBudget, "its machine costs $4.50/h, the others $6.00/h, and the budget is $10.00/h (autoscale.budget)"},
		"budget is met":  {bounds: provision.LaunchBounds{BudgetPerHour: 10}, want: replicaOn("x", 4)},
		"unknown price":  {provision.LaunchRecord{}, provision.LaunchBounds{BudgetPerHour: 10}, replicaOn("x", 0), provision.HeldByPrice, "the price of on_demand type0 in us-east-1 is unknown, so it cannot be compared with autoscale.budget"},
		"backoff":        {backed, provision.LaunchBounds{}, replicaOn("x", 1), provision.HeldByBackoff, "m on on_demand type0 in aws/us-east-1 failed once; next try at 2026-11-24 22:05:00 UTC; last failure: not ready within 45m"},
		"not a replica":  {record: full, bounds: provision.LaunchBounds{LaunchesPerHour: 1, BudgetPerHour: 1}, want: provision.Desired{ID: "lb", Kind: provision.KindBalancer, CostPerHour: 9}},
		"not this model": {record: backed, want: func() provision.Desired { w := replicaOn("x", 1); w.Labels = map[string]string{"model": "n"}; return w }()},
	} {
		c.record.Launches = slices.Clone(c.record.Launches)
		g := provision.NewLaunchGate(&c.record, func() time.Time { return now }, nothingFree)
		g.Observe(c.bounds, []provision.Object{{ID: "old", Handle: "old", CostPerHour: 6}, {ID: "gone", Handle: "gone", CostPerHour: 50, TerminatedReason: "terminated"}})
		err := g.Admit(c.want)
		var held *provision.HeldError
		switch {
		case c.kind == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.kind != "" && (!errors.As(err, &held) || held.Kind != c.kind || !strings.Contains(err.Error(), c.text)):
			t.Errorf("%s: %v, want %s: %s", name, err, c.kind, c.text)
		}
	}
}

// Where the first offering is too costly, a cheaper one is launched; launches are admitted in a stated order.
func TestGateHoldsInOrder(t *testing.T) {
	g := provision.NewLaunchGate(&provision.LaunchRecord{}, func() time.Time { return nightBegins }, nothingFree)
	g.Observe(provision.LaunchBounds{BudgetPerHour: 10}, nil)
	changes := provision.Changes{launchOf(replicaOn("a", 6)), launchOf(replicaOn("b", 6, 3)), launchOf(replicaOn("minimum", 5))}
	kept, held := g.RemoveHeld(changes, func(c provision.Change) bool { return c.ID() == "minimum" })
	if len(kept) != 2 || kept[0].ID() != "b" || kept[1].ID() != "minimum" || len(held) != 1 || held[0].ID != "a" {
		t.Fatalf("kept %v, held %v", kept, held)
	}
	f := &fake{}
	if _, err := provision.Apply(t.Context(), kept, f, provision.ApplyOptions{Gate: g, Parallel: 1}); err != nil {
		t.Fatal(err)
	}
	cost := 0.0
	for _, o := range f.objects {
		cost += o.CostPerHour
	}
	if cost > 10 || len(f.objects) == 0 {
		t.Errorf("the machines cost $%v, want at most 10", cost)
	}
}

// Launches that are only planned are not reported as launched, and leave the hour an hour from now.
func TestGateReportsPlannedLaunches(t *testing.T) {
	at := func(minutes int) provision.RecordedLaunch {
		return provision.RecordedLaunch{At: nightBegins.Add(-time.Duration(minutes) * time.Minute), ID: fmt.Sprint("earlier ", minutes)}
	}
	const limit = "the maximum (autoscale.max_launches_per_hour); next launch at "
	for _, c := range []struct {
		name     string
		launched []provision.RecordedLaunch
		limit    int
		want     string
	}{
		{"none launched", nil, 2, "2 machines about to be launched, " + limit + "23:00:00 UTC"},
		{"one launched", []provision.RecordedLaunch{at(20)}, 2, "1 machine launched in the last hour and 1 about to be launched, " + limit + "22:40:00 UTC"},
		{"a lowered limit", []provision.RecordedLaunch{at(10), at(50), at(30)}, 2, "3 machines launched in the last hour, " + limit + "22:30:00 UTC"},
	} {
		g := provision.NewLaunchGate(&provision.LaunchRecord{Launches: c.launched}, func() time.Time { return nightBegins }, nothingFree)
		g.Observe(provision.LaunchBounds{LaunchesPerHour: c.limit}, nil)
		_, held := g.RemoveHeld(provision.Changes{launchOf(replicaOn("a", 1)), launchOf(replicaOn("b", 1)), launchOf(replicaOn("c", 1))}, func(provision.Change) bool { return false })
		if len(held) == 0 || held[len(held)-1].ID != "c" || held[len(held)-1].Reason != c.want {
			t.Errorf("%s: held %v, want c: %s", c.name, held, c.want)
		}
		var later *provision.HeldError
		if err := g.Admit(replicaOn("d", 1)); !errors.As(err, &later) || later.Reason != c.want {
			t.Errorf("%s: the next launch: %v, want %s", c.name, err, c.want)
		}
	}
}

// A launch that the plan placed on its second offering does not take the budget of a later one, in whatever
// order they are applied.
func TestGateCountsCostOfKeptLaunches(t *testing.T) {
	small := replicaOn("b", 3)
	for name, order := range map[string][]provision.Desired{"b first": {replicaOn("b", 6), small, replicaOn("minimum", 5)}, "minimum first": {replicaOn("minimum", 5), replicaOn("b", 6), small}} {
		g := provision.NewLaunchGate(&provision.LaunchRecord{}, func() time.Time { return nightBegins }, nothingFree)
		g.Observe(provision.LaunchBounds{BudgetPerHour: 10, LaunchesPerHour: 2}, nil)
		g.RemoveHeld(provision.Changes{launchOf(replicaOn("b", 6, 3)), launchOf(replicaOn("minimum", 5))}, func(c provision.Change) bool { return c.ID() == "minimum" })
		var admitted []float64
		for _, w := range order {
			if err := g.Admit(w); err == nil {
				admitted = append(admitted, w.CostPerHour)
			}
		}
		if slices.Sort(admitted); !slices.Equal(admitted, []float64{3, 5}) {
			t.Errorf("%s: admitted machines of %v, want 3 and 5", name, admitted)
		}
	}
	g := provision.NewLaunchGate(&provision.LaunchRecord{}, func() time.Time { return nightBegins }, nothingFree)
	g.Observe(provision.LaunchBounds{BudgetPerHour: 10}, nil)
	g.RemoveHeld(provision.Changes{launchOf(replicaOn("planned", 8))}, func(provision.Change) bool { return false })
	g.Observe(provision.LaunchBounds{BudgetPerHour: 10}, nil)
	if err := g.Admit(replicaOn("other", 9)); err != nil {
		t.Errorf("after the next observation the former plan still holds: %v", err)
	}
}

// A controller without a record learns of recent launches from the machines.
func TestLaunchesAreObserved(t *testing.T) {
	at := func(minutes int) time.Time { return nightBegins.Add(-time.Duration(minutes) * time.Minute) }
	r := provision.LaunchRecord{Launches: []provision.RecordedLaunch{{At: at(2), ID: "lost", CostPerHour: 2}, {At: at(70), ID: "old", Handle: "old"}}}
	have := []provision.Object{
		{ID: "lost", Kind: provision.KindReplica, Handle: "h1", Started: at(2), CostPerHour: 2},
		{ID: "new", Kind: provision.KindReplica, Handle: "h2", Started: at(30)},
		{ID: "lb", Kind: provision.KindBalancer, Handle: "h3", Started: at(1)},
		{ID: "earlier", Kind: provision.KindReplica, Handle: "h4", Started: at(61)},
	}
	r.AddObserved(have, nightBegins)
	r.AddObserved(have, nightBegins)
	if launched := r.LastHour(nightBegins); !slices.EqualFunc(launched, []time.Time{at(30), at(2)}, time.Time.Equal) {
		t.Errorf("launches at %s, want those of 30 and 2 minutes ago", launched)
	}
	if cost := r.CostPerHour(have, nightBegins); cost != 2 {
		t.Errorf("a cost of $%v, want 2: each machine counts once", cost)
	}
	if cost := r.CostPerHour(have[1:], nightBegins); cost != 2 {
		t.Errorf("a cost of $%v, want 2: a machine that was just launched is not listed yet", cost)
	}
}

// Failures of a model on several offerings stop it everywhere, with growing times; a success or a changed
// configuration ends the backoff.
func TestBackoffs(t *testing.T) {
	policy := provision.BackoffPolicy{First: 5 * time.Minute, Max: 4 * time.Hour}
	spot := provision.Offering{Region: "aws/us-east-1", Type: "g6.xlarge", Capacity: service.CapacitySpot}
	onDemand, otherRegion := spot, spot
	onDemand.Capacity, otherRegion.Region = service.CapacityOnDemand, "gcp/us-central1"
	var r provision.LaunchRecord
	at := nightBegins
	fail := func(o provision.Offering, config string) {
		r.AddFailure(provision.Backoff{BackoffKey: provision.BackoffKeyOf("m", o), Last: at, Config: config, Reason: "not ready"}, policy)
	}
	for n, want := range []time.Duration{5, 10, 20, 40, 80, 160, 240, 240} {
		fail(spot, "v1")
		b := r.Covering("m", spot, at)
		if b == nil || b.Failures != n+1 || b.Next.Sub(at) != want*time.Minute {
			t.Fatalf("failure %d: %+v, want a wait of %d minutes", n+1, b, want)
		}
	}
	if r.Covering("m", onDemand, at) != nil || r.Covering("n", spot, at) != nil || r.Covering("m", spot, at.Add(4*time.Hour)) != nil {
		t.Error("a backoff covers another capacity type, another model or a later time")
	}
	fail(onDemand, "v1")
	if b := r.Covering("m", otherRegion, at); b == nil || b.BackoffKey != (provision.BackoffKey{Model: "m"}) || b.Failures != 1 {
		t.Errorf("after failures on two offerings: %+v, want the model to wait everywhere", b)
	}
	r.AddSuccess(provision.BackoffKeyOf("m", otherRegion))
	if r.Covering("m", otherRegion, at) != nil || r.Covering("m", spot, at) == nil {
		t.Error("a success in another region ends the wait of the model as a whole, not that of the failed offering")
	}
	r.AddSuccess(provision.BackoffKeyOf("m", spot))
	if r.Covering("m", spot, at) != nil {
		t.Error("a success does not end the backoff")
	}
	r.RemoveOutdatedBackoffs(map[string]string{"m": "v2"})
	if len(r.Backoffs) != 0 {
		t.Errorf("backoffs of the former configuration: %+v", r.Backoffs)
	}
	fail(spot, "v2")
	fail(spot, "v3")
	if b := r.Covering("m", spot, at); b == nil || b.Failures != 1 {
		t.Errorf("%+v, want the first failure of the new configuration", b)
	}
}

// The jitter stays within its share, and the time never exceeds it above the maximum.
func TestBackoffDelays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom([]provision.BackoffPolicy{provision.CapacityBackoff, provision.FailureBackoff, provision.ThrottleBackoff}).Draw(t, "policy")
		n, seed := rapid.IntRange(1, 1000).Draw(t, "failures"), rapid.String().Draw(t, "seed")
		d := p.Delay(n, seed)
		if low, high := float64(p.First)*(1-p.Jitter), float64(p.Max)*(1+p.Jitter); float64(d) < low || float64(d) > high {
			t.Fatalf("a wait of %s after %d failures, want %s to %s", d, n, time.Duration(low), time.Duration(high))
		}
		if d != p.Delay(n, seed) {
			t.Fatal("the same failure has two delays")
		}
	})
}

// night is a provider whose launches fail at random, and a fleet that loses machines at random.
type night struct {
	t        *rapid.T
	now      time.Time
	next     int
	objects  []provision.Object
	launches []time.Time
	late     bool // a machine is listed only one step after its launch
	hidden   map[string]bool
}

func (n *night) Offerings(context.Context, service.Region) (provision.Offerings, error) {
	return nil, nil
}

func (n *night) List(context.Context, string) ([]provision.Object, error) {
	return slices.DeleteFunc(slices.Clone(n.objects), func(o provision.Object) bool { return n.hidden[o.Handle] }), nil
}

func (n *night) Launch(_ context.Context, w provision.Desired) (provision.Object, error) {
	outcome := rapid.IntRange(0, 5).Draw(n.t, "launch")
	switch outcome {
	case 0:
		return provision.Object{}, &provision.CapacityError{Offering: w.Offerings[0], Scope: provision.ScopeZone, Code: "none", Err: errors.New("none")}
	case 1:
		return provision.Object{}, &provision.ThrottledError{Cloud: "aws", Code: "RequestLimitExceeded", Err: errors.New("slow down")}
	}
	n.next++
	o := provision.Object{ID: w.ID, Kind: w.Kind, Region: w.Region, Labels: w.Labels, Handle: fmt.Sprint("h", n.next), CostPerHour: w.CostPerHour, Started: n.now, SpecHash: w.SpecHash, Offering: &w.Offerings[0]}
	n.objects, n.launches = append(n.objects, o), append(n.launches, n.now)
	n.hidden[o.Handle] = n.late
	if outcome == 2 { // the response is lost
		return provision.Object{}, errors.New("connection reset")
	}
	return o, nil
}

func (n *night) Terminate(_ context.Context, o provision.Object) error {
	n.t.Fatalf("%s was terminated", o.ID)
	return nil
}

// Over a night of random failures, launches per hour never exceed the maximum, the cost per hour never
// exceeds the budget, and nothing is terminated because of either.
func TestGateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &night{t: t, now: nightBegins, late: rapid.Bool().Draw(t, "late lists"), hidden: map[string]bool{}}
		bounds := provision.LaunchBounds{LaunchesPerHour: rapid.IntRange(1, 8).Draw(t, "launches per hour"), BudgetPerHour: float64(rapid.IntRange(5, 40).Draw(t, "budget"))}
		record := &provision.LaunchRecord{}
		for range rapid.IntRange(20, 60).Draw(t, "steps") {
			n.now = n.now.Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second)
			n.objects = slices.DeleteFunc(n.objects, func(provision.Object) bool { return rapid.IntRange(0, 7).Draw(t, "lost") == 0 })
			have, _ := n.List(t.Context(), "")
			record = restarted(t, record)
			record.AddObserved(have, n.now)
			gate := provision.NewLaunchGate(record, func() time.Time { return n.now }, nothingFree)
			gate.Observe(bounds, have)
			var changes provision.Changes
			for i := range 12 {
				id := fmt.Sprint("r", i)
				if !slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == id }) {
					changes = append(changes, launchOf(replicaOn(id, float64(rapid.IntRange(1, 9).Draw(t, "spot")), float64(rapid.IntRange(1, 9).Draw(t, "on demand")))))
				}
			}
			changes, _ = gate.RemoveHeld(changes, func(provision.Change) bool { return false })
			_, _ = provision.Apply(t.Context(), changes, n, provision.ApplyOptions{Gate: gate, Parallel: 1, Now: func() time.Time { return n.now }})
			n.checkInvariants(bounds)
			clear(n.hidden)
		}
	})
}

// restarted returns a record as a restarted controller reads it from its file.
func restarted(t *rapid.T, r *provision.LaunchRecord) *provision.LaunchRecord {
	text, err := json.Marshal(r)
	read := &provision.LaunchRecord{}
	if err == nil {
		err = json.Unmarshal(text, read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// checkInvariants checks after a step what TestGateProperties states.
func (n *night) checkInvariants(bounds provision.LaunchBounds) {
	recent, cost := 0, 0.0
	for _, at := range n.launches {
		if n.now.Sub(at) < time.Hour {
			recent++
		}
	}
	for _, o := range n.objects {
		cost += o.CostPerHour
	}
	if recent > bounds.LaunchesPerHour {
		n.t.Fatalf("%d launches within an hour, want at most %d", recent, bounds.LaunchesPerHour)
	}
	if cost > bounds.BudgetPerHour+1e-9 {
		n.t.Fatalf("the machines cost $%v/h, want at most $%v/h", cost, bounds.BudgetPerHour)
	}
}
