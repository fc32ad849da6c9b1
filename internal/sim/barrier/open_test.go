package barrier

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"skyserve/lbd/bfio"
)

// small is a small fleet of any kind: overloaded or open, with a pool or binding on arrival.
func small(n draw) Scenario {
	s := Scenario{
		Workers: n(1, 4), Slots: n(1, 4), Overhead: 1e-2, PerToken: 1e-4, Seed: uint64(n(1, 1000)),
		OnArrival: n(0, 1) == 1,
		Lengths: func(rng *rand.Rand) (int64, int64) {
			return 1 + rng.Int64N(200), 1 + rng.Int64N(20)
		},
	}
	if n(0, 1) == 0 {
		s.VisibleRequests, s.Steps, s.Warmup = n(1, 12), 60, 10
	} else {
		s.Rate, s.Duration, s.WarmupSeconds = float64(n(1, 100)), 2, 0.5
	}
	for range n(0, 3) {
		s.Growth = append(s.Growth, int64(n(0, 3)))
	}
	return s
}

func policies() map[string]func() Policy {
	return map[string]func() Policy{"fcfs": FCFS, "jsq": JSQ, "bf-io": func() Policy { return new(bfio.Solver).Solve }}
}

// No request is lost, no worker exceeds its slots, and every policy places exactly the number of jobs
// that (IO) allows.
func TestRequestsAreConservedAndSlotsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawRapid(t)
		scenario, options := small(n), bfio.Defaults(n(0, 3))
		name := rapid.SampledFrom([]string{"fcfs", "jsq", "bf-io"}).Draw(t, "policy")
		sim, policy := NewSim(scenario, options), policies()[name]()
		for !sim.finished() {
			in := sim.Decision()
			assignment := policy(in)
			if err := bfio.Check(in, assignment); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if scenario.OnArrival && in.Places() != len(in.Jobs) {
				t.Fatalf("%d of %d jobs can be bound", in.Places(), len(in.Jobs))
			}
			sim.Apply(assignment)
			if c := sim.Counts(); c.Arrived != c.Done+c.Active+c.Waiting || min(c.Done, c.Active, c.Waiting) < 0 {
				t.Fatalf("step %d: %+v does not add up", sim.step, c)
			}
			active, waiting := 0, len(sim.queue)
			for g := range sim.active {
				if len(sim.active[g]) > scenario.Slots {
					t.Fatalf("worker %d runs %d requests in %d slots", g, len(sim.active[g]), scenario.Slots)
				}
				active, waiting = active+len(sim.active[g]), waiting+len(sim.bound[g])
			}
			if c := sim.Counts(); c.Active != active || c.Waiting != waiting {
				t.Fatalf("%+v, but %d run and %d wait", c, active, waiting)
			}
		}
	})
}

// A freed slot is assigned to the oldest request bound to its worker, and no request is
// bound behind others while a slot is free on another worker.
func TestBoundRequestsWaitInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scenario := small(drawRapid(t))
		scenario.OnArrival = true
		sim, policy := NewSim(scenario, bfio.Defaults(1)), new(bfio.Solver).Solve
		for !sim.finished() {
			in := sim.Decision()
			free, held := 0, make([]int, len(in.Workers))
			for g := range sim.active {
				held[g] = len(sim.active[g]) + len(sim.bound[g])
				free += max(0, scenario.Slots-held[g])
			}
			assignment := policy(in)
			for _, g := range assignment {
				held[g]++
				if len(in.Jobs) <= free && held[g] > scenario.Slots {
					t.Fatalf("worker %d gets %d requests in %d slots while others have free slots: %v", g, held[g], scenario.Slots, assignment)
				}
			}
			sim.Apply(assignment)
			for g, queue := range sim.bound {
				if !slices.IsSortedFunc(queue, func(a, b request) int { return a.arrived - b.arrived }) {
					t.Fatalf("worker %d: its queue is not in order", g)
				}
			}
		}
	})
}

// While slots suffice for all requests, a pool and binding on arrival are equal.
func TestDispatchIsIrrelevantWithCapacity(t *testing.T) {
	scenario := Open(3, 100)
	scenario.Duration, scenario.WarmupSeconds = 5, 2
	for name, policy := range policies() {
		scenario.OnArrival = false
		pool := NewSim(scenario, bfio.Defaults(4)).Run(policy())
		scenario.OnArrival = true
		if bound := NewSim(scenario, bfio.Defaults(4)).Run(policy()); bound != pool {
			t.Errorf("%s: %+v with a pool, %+v bound on arrival", name, pool, bound)
		}
	}
}

// arrivals runs an open scenario and returns the requests in order.
func arrivals(scenario Scenario, policy Policy) (came []float64, lengths [][2]int64) {
	sim := NewSim(scenario, bfio.Defaults(0))
	for !sim.finished() {
		in := sim.Decision()
		for _, r := range sim.queue {
			if r.arrived == sim.step {
				came, lengths = append(came, r.came), append(lengths, [2]int64{r.tokens, r.output})
			}
		}
		sim.Apply(policy(in))
	}
	return came, lengths
}

func TestPoliciesGetEqualArrivals(t *testing.T) {
	scenario := Open(5, 300)
	scenario.Duration, scenario.WarmupSeconds = 3, 1
	came, lengths := arrivals(scenario, FCFS())
	for _, policy := range []Policy{JSQ(), new(bfio.Solver).Solve} {
		c, l := arrivals(scenario, policy)
		n := min(len(c), len(came)) // the last step may end later
		if n < 1100 || !slices.Equal(c[:n], came[:n]) || !slices.Equal(l[:n], lengths[:n]) {
			t.Errorf("of %d and %d arrivals not all are the same", len(came), len(c))
		}
	}
	if !slices.IsSorted(came) {
		t.Error("arrivals are out of order")
	}
}

// Twice the rate yields the same requests in half the time.
func TestUtilisationScalesArrivalTimes(t *testing.T) {
	scenario := Open(5, 150)
	scenario.Duration, scenario.WarmupSeconds = 4, 0
	came, lengths := arrivals(scenario, FCFS())
	scenario.Rate *= 2
	faster, same := arrivals(scenario, FCFS())
	for i := range came {
		if math.Abs(faster[i]-came[i]/2) > 1e-9 || same[i] != lengths[i] {
			t.Fatalf("request %d: %v at %v s, then %v at %v s", i, lengths[i], came[i], same[i], faster[i])
		}
	}
}

func TestArrivalsArePoisson(t *testing.T) {
	scenario := Open(7, 400)
	came, _ := arrivals(scenario, JSQ())
	gaps, squares := 0.0, 0.0
	for i := 1; i < len(came); i++ {
		gap := came[i] - came[i-1]
		gaps, squares = gaps+gap, squares+gap*gap
	}
	n := float64(len(came) - 1)
	rate, variation := n/gaps, squares/n/(gaps/n)/(gaps/n)-1 // squared coefficient of variation: 1 if exponential
	if math.Abs(rate-400) > 400*5/math.Sqrt(n) || math.Abs(variation-1) > 0.1 {
		t.Errorf("%.1f a second, squared variation %.3f", rate, variation)
	}
}

// One slot: a queue with a simple recursion.
func TestOneSlotMatchesRecursion(t *testing.T) {
	scenario := Scenario{
		Workers: 1, Slots: 1, Overhead: 0.5, PerToken: 0.01, Seed: 11, Rate: 0.3, Duration: 200,
		Lengths: func(rng *rand.Rand) (int64, int64) { return rng.Int64N(50), 1 + rng.Int64N(5) },
	}
	sim := NewSim(scenario, bfio.Defaults(0))
	got := sim.Run(FCFS())
	came, lengths := arrivals(scenario, FCFS())
	clock, busy, steps := 0.0, 0.0, int64(0)
	var waits []float64
	for i := range came {
		if clock >= scenario.Duration {
			break
		}
		clock = max(clock, came[i])
		waits = append(waits, clock-came[i])
		for k := int64(0); k < lengths[i][1] && clock < scenario.Duration; k++ {
			length := 0.5 + 0.01*float64(lengths[i][0]+k)
			clock, busy, steps = clock+length, busy+length, steps+1
		}
	}
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-9*(1+want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("seconds", got.Seconds, clock)
	near("throughput", got.Throughput, float64(steps)/clock)
	near("energy", got.Linear, 400*busy+100*(clock-busy))
	near("sublinear energy", got.Sublinear, got.Linear)
	if got.Imbalance != 0 || got.BarrierIdle != 0 {
		t.Errorf("one worker waits for itself: %+v", got)
	}
	all := sim.Waits()
	if len(all) != sim.Counts().Arrived || len(all) < len(waits) || len(waits) < 40 {
		t.Fatalf("%d waits of %d requests, want at least %d", len(all), sim.Counts().Arrived, len(waits))
	}
	for i := range waits {
		near("wait", all[i], waits[i])
	}
}

func TestOpenScenarioIsReproducible(t *testing.T) {
	scenario := Open(1, 330)
	scenario.Duration, scenario.WarmupSeconds = 2, 1
	for name, policy := range policies() {
		a, b := NewSim(scenario, bfio.Defaults(5)), NewSim(scenario, bfio.Defaults(5))
		if x, y := a.Run(policy()), b.Run(policy()); x != y || !slices.Equal(a.Waits(), b.Waits()) {
			t.Errorf("%s: %+v, then %+v", name, x, y)
		}
	}
}

// Loads with a growth pattern are predicted by that pattern; one token per step equals decoding.
func TestGrowth(t *testing.T) {
	const window = 9
	scenario := Table1(2)
	scenario.Workers, scenario.VisibleRequests, scenario.Warmup, scenario.Steps = 3, 40, 0, 101
	plain := NewSim(scenario, bfio.Defaults(window)).Run(JSQ())
	scenario.Growth = []int64{1}
	if ones := NewSim(scenario, bfio.Defaults(window)).Run(JSQ()); ones != plain {
		t.Errorf("a growth of one token: %+v, want %+v", ones, plain)
	}
	scenario.Growth = []int64{0, 0, 3, 1}
	if drift := scenario.Drift(); drift != 1 {
		t.Errorf("mean growth %v", drift)
	}
	sim := NewSim(scenario, bfio.Defaults(window))
	sim.Run(JSQ())
	in := sim.Decision()
	want := clone(in).Workers
	unplaced := slices.Repeat([]int{bfio.Unplaced}, len(in.Jobs))
	for h := range window {
		sim.Apply(unplaced)
		in = sim.Decision()
		for g, w := range in.Workers {
			if w.Load != want[g].Future[h] {
				t.Fatalf("worker %d, %d steps on: %d tokens, %d predicted", g, h+1, w.Load, want[g].Future[h])
			}
		}
	}
}
