package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// worlds is the number of small services with random faults to check.
const worlds = 600

// silent is a client that issues no more requests.
type silent struct{}

func (silent) Next() []workload.Request                         { return nil }
func (silent) Done(workload.Request, string) []workload.Request { return nil }
func (silent) Failed(workload.Request) []workload.Request       { return nil }

// With any fault and any policy: no request is lost or counted twice, and no effect precedes its cause;
// after clients stop and faults end, every request ends.
func TestLawsHoldUnderFaults(t *testing.T) {
	testkit.Slow(t)
	var seen Totals
	for seed := range uint64(worlds) {
		s, setup := troubled(seed)
		w, err := newWorld(s, setup)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for w.queue.heap[0].at < s.Duration && w.violation == nil {
			w.stepEvent()
		}
		if err := drained(w); err != nil {
			t.Fatalf("seed %d, %s, %s, %s, faults %+v: %v", seed, setup.Policy, setup.Push, setup.Layout, s.Faults, err)
		}
		n := w.worldResult().Totals
		if n.Issued != n.Completed+n.Failed+n.Cancelled+n.Lost {
			t.Fatalf("seed %d: totals do not add up: %+v", seed, n)
		}
		seen.Completed, seen.Failed, seen.Cancelled, seen.Lost = seen.Completed+n.Completed, seen.Failed+n.Failed, seen.Cancelled+n.Cancelled, seen.Lost+n.Lost
	}
	if seen.Completed < 10*worlds || seen.Failed < worlds || seen.Cancelled < worlds || seen.Lost < worlds/10 {
		t.Errorf("too few events: %+v", seen)
	}
}

// drained stops all clients and ends all faults, and returns an error if requests remain.
func drained(w *world) error {
	for _, a := range w.arrivals {
		a.rate = 0
	}
	for i := range w.scenario.Faults {
		f := &w.scenario.Faults[i]
		if f.To == 0 {
			w.fault(f, true)
			f.To = w.now
		}
	}
	hushed := map[*client]bool{}
	hush := func(f *clientRequest) {
		if f != nil && !hushed[f.client] {
			hushed[f.client] = true
			f.client.workload = silent{}
		}
	}
	for limit := w.now + 20*time.Minute; w.now < limit && w.violation == nil; w.stepEvent() {
		e := w.queue.peek()
		hush(e.request)
		for _, f := range e.issue {
			hush(f)
		}
		if w.tally.inFlight() == 0 && w.quiet() {
			return w.audit()
		}
	}
	if err := w.audit(); err != nil {
		return err
	}
	return fmt.Errorf("%d requests never end", w.tally.inFlight())
}

// quiet reports whether no event about a request is pending.
func (w *world) quiet() bool {
	for i := range w.queue.heap {
		if e := &w.queue.slots[w.queue.heap[i].slot]; e.leg != nil || e.request != nil && !e.request.ended || len(e.issue) > 0 {
			return false
		}
	}
	for _, n := range w.nodes {
		if len(n.legs) > 0 {
			return false
		}
	}
	return true
}

// troubled is a small service with faults chosen by a seed.
func troubled(seed uint64) (*Scenario, Setup) {
	r := rand.New(rand.NewPCG(seed, 7))
	pick := func(n int) int { return r.IntN(n) }
	s := common
	s.Name, s.Warmup = fmt.Sprintf("troubled-%d", seed), 0
	s.Workload = workload.Kinds()[pick(len(workload.Kinds()))]
	for _, name := range []string{"us", "eu", "asia"}[:1+pick(3)] {
		s.Regions = append(s.Regions, Region{Name: name, Replicas: 1 + pick(2), Clients: 1 + pick(6), Balancers: max(1, pick(6)-2)})
	}
	s.Duration = time.Duration(5+pick(20)) * time.Second
	s.Profile.KVTokens, s.MaxContext = []int{2100, 4000, 21_000}[pick(3)], 2048
	s.Forward = pick(4) > 0
	s.Engine = []EngineModel{FullEngine, FullEngine, LightEngine}[pick(3)]
	s.Order = []core.QueueOrder{core.OrderFCFS, core.OrderFCFS, core.OrderEDF, core.OrderPF, core.OrderDPA}[pick(5)]
	s.Rate = []float64{0, 0, 2}[pick(3)]
	s.MaxWait = time.Duration(1+pick(20)) * time.Second
	s.ClientTimeout = []time.Duration{0, 0, 5 * time.Second}[pick(3)]
	for range 1 + pick(4) {
		s.Faults = append(s.Faults, drawFault(r, &s))
		if s.Validate() != nil {
			s.Faults = s.Faults[:len(s.Faults)-1]
		}
	}
	modes := []core.PushMode{{Kind: core.PushPending}, {Kind: core.PushBlind}, {Kind: core.PushOutstanding, N: 3}}
	names := append(policy.Names(), Oracle)
	setup := Setup{
		Policy: names[pick(len(names))], Push: modes[pick(3)], Layout: []Layout{Regional, Regional, Single}[pick(3)], Seed: seed,
	}
	if setup.Policy == Oracle {
		setup.Layout, s.Engine = Everywhere, FullEngine
	}
	return &s, setup
}

func drawFault(r *rand.Rand, s *Scenario) Fault {
	region, peer := s.Regions[r.IntN(len(s.Regions))], s.Regions[r.IntN(len(s.Regions))]
	from := time.Duration(r.Int64N(int64(s.Duration)))
	f := Fault{Kind: FaultKinds()[r.IntN(len(FaultKinds()))], From: from}
	if r.IntN(3) > 0 {
		f.To = from + 1 + time.Duration(r.Int64N(int64(10*time.Second)))
	}
	replica := replicaID(region.Name, r.IntN(region.Replicas))
	switch f.Kind {
	case ReplicaDown:
		f.Replica = replica
	case ReplicaSlow:
		f.Replica, f.Factor = replica, 1+4*r.Float64()
	case LinkCut:
		f.Region, f.Peer = region.Name, peer.Name
	case BalancerDown:
		f.Region = region.Name
	case ProbeLoss:
		f.Share = r.Float64()
	case ReportDelay:
		f.Region, f.Delay = region.Name, time.Duration(1+r.IntN(2000))*time.Millisecond
	}
	return f
}

// newFaultWorld returns a scenario of two regions with one fault in the middle, from 20 s to 30 s.
func newFaultWorld(t *testing.T, clients int, f Fault) *world {
	t.Helper()
	s := short(t, "fig8a", 60*time.Second)
	s.Warmup, s.Regions = 0, []Region{{Name: "us", Replicas: 2, Clients: clients}, {Name: "eu", Replicas: 2, Clients: 10}}
	f.From, f.To = 20*time.Second, 30*time.Second
	s.Faults = []Fault{f}
	w, err := newWorld(s, Setup{Policy: "skylb", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) stepUntil(at time.Duration) {
	for w.queue.heap[0].at < at {
		w.stepEvent()
	}
}

// under runs newFaultWorld.
func under(t *testing.T, f Fault) (*Result, *world) {
	t.Helper()
	w := newFaultWorld(t, 60, f)
	w.stepUntil(60 * time.Second)
	if err := w.audit(); err != nil {
		t.Fatal(err)
	}
	return w.worldResult(), w
}

// Each fault affects its target, which works again afterwards.
func TestFaultsHaveTheirEffects(t *testing.T) {
	sound, _ := under(t, Fault{Kind: ProbeLoss})
	if sound.Figures.Rejected > 0 || sound.Totals.Lost > 0 {
		t.Fatalf("without a fault, %v were rejected and %d lost", sound.Figures.Rejected, sound.Totals.Lost)
	}
	replica := func(r *Result, i int) *engine.Load { return &r.Replicas[i] }
	r, w := under(t, Fault{Kind: ReplicaDown, Replica: "us-01"})
	if r.Figures.Rejected == 0 || w.replicas[0].lost == 0 || replica(r, 0).Submitted == 0 || w.replicas[0].engine.Load().Finished == 0 {
		t.Errorf("replica-down: %v rejected, %d lost with it, afterwards %+v", r.Figures.Rejected, w.replicas[0].lost, w.replicas[0].engine.Load())
	}
	r, _ = under(t, Fault{Kind: ReplicaSlow, Replica: "us-01", Factor: 100})
	if got, want := replica(r, 0).GeneratedTokens, replica(sound, 0).GeneratedTokens; got > want*95/100 || got < want/2 {
		t.Errorf("replica-slow: %d tokens generated, %d without", got, want)
	}
	r, w = under(t, Fault{Kind: LinkCut, Region: "us", Peer: "eu"})
	if r.Balancers[1].Cancelled == 0 || w.isCut(w.nodes[0], w.nodes[1]) {
		t.Errorf("link-cut: %+v in eu", r.Balancers[1])
	}
	r, w = under(t, Fault{Kind: BalancerDown, Region: "us"})
	if r.Totals.Lost == 0 || w.replicas[0].node != w.nodes[0] || w.nodes[0].core.Snapshot(w.now).Counts.Finished == 0 || r.Balancers[1].Arrived < 2*sound.Balancers[1].Arrived-r.Balancers[1].ForwardedIn {
		t.Errorf("balancer-down: %+v, %+v, without %+v", r.Totals, r.Balancers, sound.Balancers)
	}
	lossy, _ := under(t, Fault{Kind: ProbeLoss, Share: 1})
	late, _ := under(t, Fault{Kind: ReportDelay, Delay: 2 * time.Second, Region: "us"})
	for name, r := range map[string]*Result{"probe-loss": lossy, "report-delay": late} {
		if r.Totals.Completed == sound.Totals.Completed && r.Totals.Events == sound.Totals.Events {
			t.Errorf("%s changes nothing: %+v", name, r.Totals)
		}
	}
}

// An overloaded region forwards requests over a link before and after a cut, but none during it.
func TestCutLinkForwardsNothing(t *testing.T) {
	for _, f := range []Fault{{Kind: ProbeLoss}, {Kind: LinkCut, Region: "us", Peer: "eu"}} {
		w := newFaultWorld(t, 150, f)
		var received [4]int64
		for i, at := range []time.Duration{10, 20, 30, 40} {
			w.stepUntil(at * time.Second)
			received[i] = w.nodes[1].core.Snapshot(w.now).Counts.ForwardedIn
		}
		before, during, after := received[1]-received[0], received[2]-received[1], received[3]-received[2]
		if before == 0 || after == 0 || (during == 0) != (f.Kind == LinkCut) {
			t.Errorf("%s: %d, %d and %d requests forwarded before, during and after", f.Kind, before, during, after)
		}
	}
}

// 1.25 s after a balancer stops, its replicas belong to another one.
func TestReplicasOfStoppedBalancerAreAdopted(t *testing.T) {
	s := short(t, "fig8a", 60*time.Second)
	s.Faults = []Fault{{Kind: BalancerDown, Region: "us", From: 10 * time.Second, To: 20 * time.Second}, {Kind: BalancerDown, Region: "eu", From: 15 * time.Second}}
	w, err := newWorld(s, Setup{Policy: "skylb", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct {
		until time.Duration
		owner string
	}{{10*time.Second + adoptionDelay - 1, "us"}, {10*time.Second + adoptionDelay + 1, "eu"}, {17 * time.Second, "asia"}, {21 * time.Second, "us"}} {
		for w.queue.heap[0].at < at.until {
			w.stepEvent()
		}
		if got := w.replicas[0].node.id; got != at.owner {
			t.Errorf("at %v us-01 is %s's, want %s's", at.until, got, at.owner)
		}
	}
	if n := w.balancerFor(&client{region: 1}); n.id != "us" {
		t.Errorf("clients of eu use %s, want us, which is nearer than asia", n.id)
	}
}

// A balancer that stops again keeps its replicas for 1.25 s, not until those of its first stop have passed.
func TestAdoptionCountsFromTheLastStop(t *testing.T) {
	s := short(t, "fig8a", 60*time.Second)
	ms := time.Millisecond
	s.Faults = []Fault{{Kind: BalancerDown, Region: "us", From: 10 * time.Second, To: 10_100 * ms}, {Kind: BalancerDown, Region: "us", From: 10_200 * ms, To: 20 * time.Second}}
	w, err := newWorld(s, Setup{Policy: "skylb", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct {
		until time.Duration
		owner string
	}{{10_200*ms + adoptionDelay - 1, "us"}, {10_200*ms + adoptionDelay + 1, "eu"}} {
		w.stepUntil(at.until)
		if got := w.replicas[0].node.id; got != at.owner {
			t.Errorf("at %v us-01 is %s's, want %s's", at.until, got, at.owner)
		}
	}
}

// at and when of an engine's clock agree after any change of speed.
func TestClockAtAndWhenAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var c clock
	now := time.Duration(0)
	for range 2000 {
		now += time.Duration(r.Int64N(int64(time.Second)))
		if r.IntN(3) == 0 {
			before := c.at(now)
			c.slow(now, 1+10*r.Float64())
			if c.at(now) != before {
				t.Fatalf("a change at %v moves the engine from %v to %v", now, before, c.at(now))
			}
		}
		then := c.at(now) + time.Duration(r.Int64N(int64(time.Second)))
		when := c.when(then)
		if c.at(when) != then || when > now && c.at(when-1) >= then {
			t.Fatalf("%+v: %v of the engine is %v of the world, which is %v of the engine", c, then, when, c.at(when))
		}
	}
}

func TestFaultErrors(t *testing.T) {
	for _, c := range []struct {
		want   string
		faults []Fault
	}{
		{`faults[0].kind: must be one of replica-down, `, []Fault{{Kind: "fire"}}},
		{`faults[0].replica: unknown replica "us-09": the first replica`, []Fault{{Kind: ReplicaDown, Replica: "us-09"}}},
		{`faults[0].factor: must be at least 1 and at most 1000, got 0.5`, []Fault{{Kind: ReplicaSlow, Replica: "us-01", Factor: 0.5}}},
		{`faults[0].peer: must differ from region "us"`, []Fault{{Kind: LinkCut, Region: "us", Peer: "us"}}},
		{`faults[0].peer: unknown region "mars"`, []Fault{{Kind: LinkCut, Region: "us", Peer: "mars"}}},
		{`faults[0].share: must be at least 0 and at most 1, got 2`, []Fault{{Kind: ProbeLoss, Share: 2}}},
		{`faults[0].delay: must be greater than 0 and at most 1h0m0s, got 0s`, []Fault{{Kind: ReportDelay}}},
		{`faults[0].replica: unknown replica "x"`, []Fault{{Kind: ReportDelay, Delay: 1, Replica: "x"}}},
		{`faults[0].factor: is not a key of replica-down: must be one of kind, from, to, replica`, []Fault{{Kind: ReplicaDown, Replica: "us-01", Factor: 5}}},
		{`faults[0].balancer: is not a key of link-cut: must be one of kind, from, to, region, peer`, []Fault{{Kind: LinkCut, Region: "us", Peer: "eu", Balancer: 1}}},
		{`faults[0].region: conflicts with replica`, []Fault{{Kind: ProbeLoss, Share: 1, Replica: "us-01", Region: "eu"}}},
		{`faults[0].region: unknown region ""`, []Fault{{Kind: BalancerDown}}},
		{`faults[0].balancer: must be at least 0 (all) and at most 1, got 2`, []Fault{{Kind: BalancerDown, Region: "us", Balancer: 2}}},
		{`faults[0]: must end after it starts, got 5s to 3s`, []Fault{{Kind: BalancerDown, Region: "us", From: 5 * time.Second, To: 3 * time.Second}}},
		{`faults[1]: link-cut: overlaps faults[0], which affects the same target`, []Fault{{Kind: LinkCut, Region: "us", Peer: "eu"}, {Kind: LinkCut, Region: "eu", Peer: "us", From: time.Second}}},
	} {
		s := short(t, "fig8a", time.Minute)
		s.Faults = c.faults
		_, err := Run(context.Background(), s, Setup{Policy: "skylb", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional})
		if err == nil || !strings.HasPrefix(err.Error(), "checking scenario fig8a: "+c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
