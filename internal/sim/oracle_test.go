package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
)

// watched is a run with the oracle.
func watched(t *testing.T, name string, duration time.Duration) (*world, *oracle) {
	t.Helper()
	w, err := newWorld(short(t, name, duration), Setup{Policy: Oracle, Push: push(t, "pending"), Layout: Everywhere, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w, newOracle(w, w.nodes[0])
}

// The oracle's incremental state equals a full recomputation, throughout runs that fill caches and
// memories.
func TestOracleStateIsAccurate(t *testing.T) {
	testkit.Slow(t)
	for _, name := range []string{"tot30", "mixed-gpu-chat", "sglang-groups"} {
		w, o := watched(t, name, 8*time.Second)
		seen := 0
		for w.queue.heap[0].at < w.scenario.Duration {
			w.stepEvent()
			if w.events%211 != 0 {
				continue
			}
			o.refresh()
			for id, l := range w.nodes[0].legs {
				for _, s := range o.states {
					got, want := o.waitingRequestOf(l).cached(s), reachable(s.r, l.request)
					if got != want {
						t.Fatalf("%s at %v: request %s finds %d tokens at %s, want %d", name, w.now, id, got, s.r.id, want)
					}
					seen += want
				}
			}
			for _, s := range o.states {
				checkState(t, s)
			}
		}
		if seen == 0 {
			t.Errorf("%s: no request had a prefix hit", name)
		}
	}
}

// reachable computes the cached part of a prompt at a replica by brute force.
func reachable(r *replica, f *clientRequest) int {
	best := r.engine.CachedPrefix(f.prompt)
	for l := range r.due {
		best = max(best, commonTokens(f, l.request))
	}
	return min(best, f.promptTokens()-1)
}

// checkState compares a state with its engine.
func checkState(t *testing.T, s *replicaState) {
	t.Helper()
	l := s.r.engine.Load()
	onTheWay := 0
	for leg := range s.r.due {
		if _, there := s.r.jobs[leg.job]; !there {
			onTheWay++
		}
	}
	if s.load != l || s.presentRequests() != l.Running+l.Pending+onTheWay {
		t.Fatalf("%s: %d present of %+v and %d on the way", s.r.id, s.presentRequests(), l, onTheWay)
	}
	// A preempted request is pending although it has its first token: the only exception.
	if l.Preempted == 0 && s.pending != l.Pending+onTheWay {
		t.Fatalf("%s: %d pending of %+v and %d on the way", s.r.id, s.pending, l, onTheWay)
	}
	steps := 0
	for i, at := range s.remaining {
		if steps += at.steps; s.sums[i] != steps || at.steps < 0 || i > 0 && at.steps < s.remaining[i-1].steps {
			t.Fatalf("%s: stays %v, sums %v", s.r.id, s.remaining, s.sums)
		}
	}
}

// The oracle's counts are consistent: a request is counted at one gate, and not after it
// has been sent.
func TestOracleCountsGateWaiters(t *testing.T) {
	w, _ := watched(t, "mixed-gpu-chat", 8*time.Second)
	o := newOracle(w, w.nodes[0])
	cfg := core.DefaultConfig(o)
	cfg.ProbeInterval = w.scenario.Interval
	w.nodes[0].core = core.New(cfg)
	for _, r := range w.replicas {
		w.assignReplica(r, w.nodes[0])
	}
	waited := 0
	for w.queue.heap[0].at < w.scenario.Duration {
		w.stepEvent()
		counts := map[*replicaState]int{}
		for f, q := range o.waiting {
			if q.gate != nil {
				counts[q.gate]++
			}
			if l := w.nodes[0].legs[f.id]; l == nil || l.replica != nil {
				t.Fatalf("request %s is still recorded as waiting", f.id)
			}
		}
		for _, s := range o.states {
			if s.gateWaiters != counts[s] {
				t.Fatalf("%s: %d gate waiters, counted %d", s.r.id, counts[s], s.gateWaiters)
			}
			waited += s.gateWaiters
		}
	}
	if waited == 0 {
		t.Error("no request waited at the gate")
	}
}

// The wait by bisection equals the wait by linear search.
func TestOracleWaitMatchesBruteForce(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		s := &replicaState{reserve: 0.2}
		s.profile.KVTokens, s.profile.MaxRunning = 500+draw.IntN(4000), 1+draw.IntN(30)
		s.load.KVActive = draw.IntN(s.profile.KVTokens)
		for range draw.IntN(20) {
			s.remaining = append(s.remaining, remainingWork{draw.IntN(200), draw.IntN(600)})
		}
		s.computeSums()
		need, held := float64(draw.IntN(800)), draw.IntN(4)
		if got, want := s.wait(need, held), longWait(s, need, held); got != want {
			t.Fatalf("%d needed behind %d at %+v: %v steps, want %v", int(need), held, s.remaining, got, want)
		}
		if s.wait(need+100, held) < s.wait(need, held) || s.wait(need, held+1) < s.wait(need, held) {
			t.Fatalf("more is admitted sooner: %+v", s.remaining)
		}
	}
}

// longWait searches the present requests linearly.
func longWait(s *replicaState, need float64, held int) float64 {
	room := float64(s.profile.KVTokens-s.load.KVActive) - need*float64(1+held)
	places := s.profile.MaxRunning - len(s.remaining) - 1 - held
	if room >= 0 && places >= 0 {
		return 0
	}
	enough := room >= 0
	for i, at := range s.remaining {
		frees, grown := 0, 0
		for j, other := range s.remaining {
			if j <= i {
				frees += other.frees
			}
			grown += min(at.steps, other.steps)
		}
		enough = enough || room+float64(frees)-(1-s.reserve)*float64(grown) >= 0
		if enough && places+i+1 >= 0 {
			return float64(at.steps)
		}
	}
	if len(s.remaining) == 0 {
		return float64(held)
	}
	return float64(s.remaining[len(s.remaining)-1].steps + stepsAfterPresent*(1+held))
}

// No policy exceeds the oracle.
func TestOracleBoundsPolicies(t *testing.T) {
	testkit.Slow(t)
	for _, c := range []struct {
		scenario, policy, push string
		layout                 Layout
		duration               time.Duration
	}{
		{"fig8a", "cost", "pending", Regional, 60 * time.Second},
		{"sglang-groups", "cache-aware", "blind", Single, 60 * time.Second},
		{"mixed-gpu-chat", "cost", "pending", Regional, 20 * time.Second},
	} {
		s := short(t, c.scenario, c.duration)
		real := run(t, s, Setup{Policy: c.policy, Push: push(t, c.push), Layout: c.layout, Seed: 1}).Figures
		best := run(t, s, Setup{Policy: Oracle, Push: push(t, "pending"), Layout: Everywhere, Seed: 1}).Figures
		if best.OutputTokensPerSecond < 0.98*real.OutputTokensPerSecond {
			t.Errorf("%s: the oracle %.0f tokens per second, %s %.0f", c.scenario, best.OutputTokensPerSecond, c.policy, real.OutputTokensPerSecond)
		}
	}
}

func TestOracleWeightsFollowEngines(t *testing.T) {
	for name, want := range map[string]*oracleWeights{"fig8a": &equalEngines, "mixed-gpu-chat": &unequalEngines} {
		w, _ := watched(t, name, time.Second)
		if got := weightsFor(w.replicas); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestOracleLinearisesCurves(t *testing.T) {
	for _, c := range []struct {
		curve       engine.Curve
		base, slope float64
	}{
		{nil, 2, 1},
		{engine.Curve{{At: 5, Time: 3 * time.Second}}, 3, 0},
		{engine.Curve{{At: 1, Time: 3 * time.Second}, {At: 2, Time: 9 * time.Second}, {At: 5, Time: 11 * time.Second}}, 1, 2},
		{engine.Curve{{At: 10, Time: time.Second}, {At: 12, Time: 5 * time.Second}}, 0, 2},
	} {
		if base, slope := linearTimes(c.curve, 2*time.Second, time.Second); base != c.base || slope != c.slope {
			t.Errorf("%v: %v and %v a unit, want %v and %v", c.curve, base, slope, c.base, c.slope)
		}
	}
}

func TestOracleRequiresItsLayout(t *testing.T) {
	for _, setup := range []Setup{{Policy: Oracle, Layout: Regional}, {Policy: "cost", Layout: Everywhere}} {
		setup.Push = push(t, "pending")
		if _, err := Run(t.Context(), short(t, "fig8a", time.Second), setup); err == nil {
			t.Errorf("%+v runs", setup)
		}
	}
}

// BenchmarkOracle measures a second of the busiest scenario.
func BenchmarkOracle(b *testing.B) {
	for b.Loop() {
		run(b, short(b, "mixed-gpu-tree", 2*time.Second), Setup{Policy: Oracle, Push: push(b, "pending"), Layout: Everywhere, Seed: 1})
	}
}
