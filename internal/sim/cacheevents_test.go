package sim

import (
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// Where memory holds each long context about once, approximate knowledge sends requests to replicas that have
// evicted theirs. With cache events the policy that follows the longest prefix finds them.
func TestCacheEventsRaiseHitRates(t *testing.T) {
	testkit.Slow(t)
	hits := func(events bool) float64 {
		s := short(t, "shared-contexts", 60*time.Second)
		s.Rate, s.CacheEvents = 20, events
		r := run(t, s, Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 1})
		if r.Figures.PrefixHitRate == nil {
			t.Fatal("no request was admitted")
		}
		return *r.Figures.PrefixHitRate
	}
	without, with := hits(false), hits(true)
	if with < without+0.05 {
		t.Errorf("prefix hit rate: %.3f without cache events, %.3f with them", without, with)
	}
}

// Runs with cache events satisfy the invariants of all runs, also when replicas restart and balancers die.
func TestCacheEventsSurviveFaults(t *testing.T) {
	s := short(t, "failover", 60*time.Second)
	s.CacheEvents = true
	for i := range s.Faults {
		s.Faults[i].From, s.Faults[i].To = s.Faults[i].From/8, s.Faults[i].To/8
	}
	if got := run(t, s, Setup{Policy: "cost", Push: push(t, "pending"), Layout: Regional, Seed: 1}); got.Figures.Completed == 0 {
		t.Error("no request was completed")
	}
}
