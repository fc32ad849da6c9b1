package sim

import (
	"testing"
	"time"

	"skyserve/internal/sim/workload"
)

// Scenarios in which cost was behind skylb, drawn by `sim fuzz-policy`. The means of six runs are compared, as one
// run has few requests.
func TestCostIsNotBehindSkyLB(t *testing.T) {
	const runs = 6
	for _, c := range []struct {
		seed       uint64
		duration   time.Duration // shorter than drawn
		cause      string
		throughput float64 // minimum, relative to skylb
		ttftP90    float64 // maximum, relative to skylb
	}{
		{420018, 276 * time.Second, "replicas seemed full until the next probe, 721 ms later", 0.97, 1.1},
		{410058, time.Minute, "replicas at which no request had ended seemed to have no waits", 1, 1},
	} {
		s := Mixture(c.seed)
		s.Duration = c.duration
		if s.Workload != workload.Contexts {
			t.Fatalf("seed %d draws %s", c.seed, s.Workload)
		}
		mean := func(policy string) (throughput, ttftP90 float64) {
			for seed := range uint64(runs) {
				f := run(t, &s, Setup{Policy: policy, Push: push(t, "pending"), Layout: Regional, Seed: c.seed + seed}).Figures
				throughput, ttftP90 = throughput+f.OutputTokensPerSecond/runs, ttftP90+f.TTFT.P90/runs
			}
			return throughput, ttftP90
		}
		cost, costP90 := mean("cost")
		skylb, skylbP90 := mean("skylb")
		t.Logf("seed %d: %.0f tokens/s and %.1f s P90 TTFT, skylb %.0f and %.1f s", c.seed, cost, costP90/1000, skylb, skylbP90/1000)
		if cost < c.throughput*skylb || costP90 > c.ttftP90*skylbP90 {
			t.Errorf("%s: %.3f times the throughput of skylb, %.3f times its P90 TTFT", c.cause, cost/skylb, costP90/skylbP90)
		}
	}
}

// The default policy serves as much as skylb in five drawn loads that it once lost:
//   - An overload of conversations at one replica. It served requests of older sessions first, even when little of their
//     long prompts was still cached, and rejected shorter ones.
//   - Bursts of one prompt. Engines cache a prompt when its step ends, so it had the prompt computed again and again.
//   - Many running requests, which every prefill step interrupts. It spread prompts over more steps than necessary.
//   - Many clients with a few prompts, which fit into each replica's memory. It computed each prompt once, at a replica
//     that then had up to twice as many requests as others.
//   - One replica that is 2.4 times as fast as the others. Requests queued for it while the others had free memory.
func TestCostServesAsMuchAsSkyLB(t *testing.T) {
	const runs = 4
	for _, c := range []struct {
		name     string
		seed     uint64
		workload workload.Kind
		change   func(s *Scenario)
		ratio    float64
	}{
		{"overload at one replica", 1800139, workload.Arena, func(s *Scenario) {
			s.Regions, s.Links, s.Rate, s.Duration = s.Regions[:1], nil, s.Rate/2, 10*time.Minute
		}, 0.99},
		{"bursts of one prompt", 1900069, workload.Bursts, func(*Scenario) {}, 1},
		{"many running requests", 2000127, workload.Arena, func(*Scenario) {}, 1},
		{"prompts shared by many clients", 2100154, workload.Groups, func(*Scenario) {}, 0.985},
		{"a fast replica among slow ones", 2300167, workload.Arena, func(*Scenario) {}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Mixture(c.seed)
			if s.Workload != c.workload {
				t.Fatalf("drew %s", s.Title)
			}
			c.change(&s)
			mean := func(policy string) (throughput float64) {
				for seed := range uint64(runs) {
					f := run(t, &s, Setup{Policy: policy, Push: push(t, "pending"), Layout: Regional, Seed: seed + 1}).Figures
					throughput += f.OutputTokensPerSecond / runs
				}
				return throughput
			}
			cost, skylb := mean("cost"), mean("skylb")
			t.Logf("cost %.0f tokens/s, skylb %.0f", cost, skylb)
			if cost < c.ratio*skylb {
				t.Errorf("cost serves %.3f times the tokens of skylb", cost/skylb)
			}
		})
	}
}

// Contexts that fit once into the memory of all regions, but not once into that of each region. One balancer for all
// replicas keeps each at one replica. Balancers of regions once copied them from each other, and so evicted others all the
// time: they served 0.84 times as many tokens.
func TestRegionsShareScarceMemory(t *testing.T) {
	s := Mixture(2200003)
	if s.Workload != workload.Contexts || len(s.Regions) != 6 {
		t.Fatalf("drew %s", s.Title)
	}
	s.Duration = 3 * time.Minute
	serve := func(setup Setup) float64 { return run(t, &s, setup).Figures.OutputTokensPerSecond }
	cost := serve(Setup{Policy: "cost", Push: push(t, "pending"), Layout: Regional, Seed: 1})
	single := serve(Setup{Policy: "cache-aware", Push: push(t, "blind"), Layout: Single, Seed: 1})
	t.Logf("cost %.0f tokens/s, cache-aware %.0f", cost, single)
	if cost < 0.95*single {
		t.Errorf("cost serves %.3f times the tokens of one balancer with cache-aware", cost/single)
	}
}

// Two regions of the same size, whose memory together holds each context once. A peer's figures look better than those of
// replicas here, because they are the best of several replicas. Each region once forwarded nearly all requests to the
// other one, so that both computed every context, and served 0.9 times as many tokens as one balancer.
func TestEqualRegionsKeepSharedPrefixes(t *testing.T) {
	s := Mixture(2500171)
	if s.Workload != workload.Contexts || len(s.Regions) != 6 {
		t.Fatalf("drew %s", s.Title)
	}
	s.Regions = []Region{{Name: "us", Replicas: 17, Clients: 60}, {Name: "eu", Replicas: 17, Clients: 60}}
	s.Duration = 3 * time.Minute
	s.Links = []Link{{A: "us", B: "eu", RTT: 40 * time.Millisecond}}
	serve := func(layout Layout) float64 {
		return run(t, &s, Setup{Policy: "cost", Push: push(t, "pending"), Layout: layout, Seed: 1}).Figures.OutputTokensPerSecond
	}
	regional, single := serve(Regional), serve(Single)
	t.Logf("regional %.0f tokens/s, single %.0f", regional, single)
	if regional < 0.96*single {
		t.Errorf("the balancers of two regions serve %.3f times the tokens of one balancer", regional/single)
	}
}
