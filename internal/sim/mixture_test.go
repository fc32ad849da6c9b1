package sim

import (
	"reflect"
	"testing"
	"time"

	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
)

// Drawn scenarios are valid, differ, stay within the documented ranges and survive a file. The same
// seed draws the same scenario.
func TestMixture(t *testing.T) {
	kinds, regions, loops, lengthened := map[workload.Kind]bool{}, map[int]bool{}, map[bool]bool{}, 0
	for seed := range uint64(150) {
		s := Mixture(seed)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		if again := Mixture(seed); !reflect.DeepEqual(s, again) {
			t.Fatalf("seed %d drew two scenarios:\n%+v\n%+v", seed, s, again)
		}
		replicas := 0
		for _, r := range s.Regions {
			replicas += r.Replicas
		}
		if replicas < 1 || replicas > 64 || s.Interval > time.Second || s.Duration < time.Minute || s.Duration > time.Hour {
			t.Errorf("seed %d drew %d replicas, probes every %s, %s", seed, replicas, s.Interval, s.Duration)
		}
		if s.Duration > 5*time.Minute { // its requests take long
			lengthened++
		}
		kinds[s.Workload], regions[len(s.Regions)], loops[s.Rate > 0] = true, true, true
		file, err := ParseFile("drawn.yaml", []byte(s.YAML()))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, s.YAML())
		}
		if !reflect.DeepEqual(file.Constants(), s.Constants()) {
			t.Errorf("seed %d: the file has constants\n%+v\nwant\n%+v", seed, file.Constants(), s.Constants())
		}
	}
	if lengthened == 0 || lengthened > 75 {
		t.Errorf("%d of 150 runs take more than five minutes", lengthened)
	}
	if len(kinds) != len(workload.Kinds()) || len(regions) != 6 || len(loops) != 2 {
		t.Errorf("150 draws have %d workloads, %d numbers of regions and %d loops", len(kinds), len(regions), len(loops))
	}
}

// Engines that respond faster do not serve fewer tokens of the same arrivals. With a warm-up, those of this draw would:
// they serve more of the first requests before its end.
func TestOpenMixtureFavoursFaster(t *testing.T) {
	s := Mixture(1500020) // trees of thoughts, 30 requests each, below the capacity
	if s.Rate == 0 {
		t.Fatalf("a closed loop: %s", s.Title)
	}
	serve := func(factor float64) float64 {
		scaled := s
		scaled.Profile = s.Profile.Scaled(factor)
		return run(t, &scaled, Setup{Policy: "least-load", Push: core.PushMode{Kind: core.PushBlind}, Layout: Single, Seed: 1}).Figures.OutputTokensPerSecond
	}
	if drawn, fast := serve(1), serve(0.5); fast < drawn {
		t.Errorf("engines of twice the speed serve %.1f instead of %.1f tokens per second", fast, drawn)
	}
}
