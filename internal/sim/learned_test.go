package sim

import (
	"fmt"
	"testing"
	"time"

	"skyserve/internal/sim/workload"
)

// slots is a service of four engines with a number of slots each, of which two are two and three times
// as slow, and enough memory for all requests.
func slots(n, clients int, kind workload.Kind) *Scenario {
	s := common
	s.Name, s.Workload, s.Duration, s.Warmup = "slots", kind, 200*time.Second, 0.4 // in which the limits are learned
	s.Regions = []Region{{Name: "us", Replicas: 4, Clients: clients}}
	for _, pace := range []time.Duration{1, 1, 2, 3} {
		p := s.Profile
		p.Name = fmt.Sprintf("pace-%d", pace)
		p.MaxRunning, p.KVTokens = n, 1_000_000
		p.PrefillBase, p.PrefillPerToken = pace*p.PrefillBase/4, pace*p.PrefillPerToken/4
		p.DecodeBase, p.DecodePerRequest, p.DecodePerKVToken = pace*p.DecodeBase/4, pace*p.DecodePerRequest/4, pace*p.DecodePerKVToken/4
		s.Regions[0].Profiles = append(s.Regions[0].Profiles, p)
	}
	return &s
}

// An engine without metrics serves about as many tokens as one with metrics, whatever its number of
// slots. With a fixed limit of 24, requests wait at a small engine while others are free, and a large
// one has free slots.
func TestLearnedLimitReplacesMetrics(t *testing.T) {
	for _, c := range []struct {
		policy  string
		slots   int
		clients int
		kind    workload.Kind
		better  float64 // tokens compared with the fixed limit, at least
	}{
		{"cost", 2, 12, workload.ToT15, 1.2},
		{"cost", 4, 11, workload.ToT15, 1.15},
		{"cost", 64, 180, workload.Arena, 1.4},
		{"least-load", 4, 24, workload.ToT15, 0.97},
		{"least-load", 64, 180, workload.ToT15, 1.4},
	} {
		tokens := func(mode string, hidden bool) float64 {
			s := slots(c.slots, c.clients, c.kind)
			if hidden {
				s.Faults = []Fault{{Kind: NoMetrics}}
			}
			return run(t, s, Setup{Policy: c.policy, Push: push(t, mode), Layout: Regional, Seed: 1}).Figures.OutputTokensPerSecond
		}
		shown, fixed, learned := tokens("pending", false), tokens("outstanding:24", true), tokens("pending", true)
		if learned < 0.93*shown || learned < c.better*fixed {
			t.Errorf("%s, %d slots: %.0f tokens per second; with metrics %.0f, with a fixed limit %.0f", c.policy, c.slots, learned, shown, fixed)
		}
	}
}
