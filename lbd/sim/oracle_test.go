package sim

import (
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// The truth that the oracle is told is the engines' own, whatever the balancer
// believes: checked at every choice of a run that fills caches and memories.
func TestTheOracleSeesTheTruth(t *testing.T) {
	s := short(t, "tot30", 15*time.Second)
	w, err := newWorld(s, Setup{Policy: Oracle, Push: push(t, "pending"), Layout: Everywhere, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for w.queue.heap[0].at < s.Duration {
		w.step()
		if w.events%97 != 0 {
			continue
		}
		for _, r := range w.replicas {
			c := policy.Candidate{ID: r.id, Outstanding: 99, Overtaken: true}
			var f *flight
			for _, j := range r.jobs {
				f = j.leg.flight
				break
			}
			if f == nil {
				continue
			}
			o := &oracle{Cost: policy.NewCost(), w: w, n: w.nodes[0]}
			o.see(&c, r, f, 4*len(f.prompt))
			l := r.engine.Load()
			want := r.engine.CachedPrefix(f.prompt)
			if c.Overtaken || c.Pending.Value != l.Pending || c.Running.Value != l.Running || c.Match < 4*want || c.Match > 4*len(f.prompt) {
				t.Fatalf("%s: told %+v; %d tokens are cached, the load is %+v", r.id, c, want, l)
			}
			if want > 0 {
				seen++
			}
		}
	}
	if seen == 0 {
		t.Error("no cache ever held anything")
	}
}

// A bound that is far below what it bounds is none: with the truth, cost does
// not do worse than without it, but for chance.
func TestTheOracleIsNoWorseThanWhatItBounds(t *testing.T) {
	for _, name := range []string{"tot30"} {
		s := short(t, name, 40*time.Second)
		cost := run(t, s, Setup{Policy: "cost", Push: push(t, "pending"), Layout: Regional, Seed: 1}).Figures
		best := run(t, s, Setup{Policy: Oracle, Push: push(t, "pending"), Layout: Everywhere, Seed: 1}).Figures
		if best.OutputTokensPerSecond < 0.97*cost.OutputTokensPerSecond {
			t.Errorf("%s: the oracle %.0f tokens a second, cost %.0f", name, best.OutputTokensPerSecond, cost.OutputTokensPerSecond)
		}
	}
}

func TestTheOracleAndItsLayoutGoTogether(t *testing.T) {
	for _, setup := range []Setup{{Policy: Oracle, Layout: Regional}, {Policy: "cost", Layout: Everywhere}} {
		setup.Push = push(t, "pending")
		if _, err := Run(t.Context(), short(t, "fig8a", time.Second), setup); err == nil {
			t.Errorf("%+v runs", setup)
		}
	}
}
