package sim

import (
	"fmt"

	"skyserve/internal/workload"
	"skyserve/lbd/core"
)

// microShapes are the experiments that look at one thing: SkyLB's figures 6 and
// 9 and SGLang's balanced groups. Each compares what its source compares.
func microShapes() []shape {
	var all []shape
	for _, clients := range []int{30, 40, 50, 60} {
		all = append(all, fig9(clients))
	}
	all = append(all,
		fig6("users", "users who share long prompts with each other", workload.Shared, 72, 0.1649),
		fig6("bursts", "users with up to eight calls at once", workload.Bursts, 24, 0.0707),
		fig6("programs", "users whose calls have different prompts", workload.Programs, 36, 0.0878),
	)
	return append(all, shape{
		name: "sglang-groups", title: "SGLang: 64 balanced groups of calls with long prompts, 8 replicas", workload: workload.Groups,
		replicas: [3]int{8}, clients: [3]int{128},
		claims: []Claim{
			level(hitRate, "round-robin", 0.20, 0.20),
			level(hitRate, "cache-aware", 0.75, 0.75),
			ratio(throughput, "cache-aware", "round-robin", 158_596.0/82_665),
		},
		change: func(s *Scenario) { s.Policies = []string{"round-robin", "cache-aware", "skylb", "cost"} },
	})
}

// fig9 is SkyLB's figure 9: SGLang's router in one region, pushing blindly (BP),
// by outstanding (SP-O) and by pending requests (SP-P).
func fig9(clients int) shape {
	const router = "cache-aware:skylb"
	side := func(push string) Side { return Side{Policy: router, Push: push} }
	than := func(push string) *Side { s := side(push); return &s }
	h := shape{
		name: fmt.Sprintf("fig9-%d", clients), workload: workload.ToT15, replicas: [3]int{4}, clients: [3]int{clients},
		title: fmt.Sprintf("SkyLB fig. 9: when to push, trees of 15 requests, 4 replicas, %d clients", clients),
		change: func(s *Scenario) {
			s.Policies, s.Pushes = []string{router}, []string{"blind", "outstanding:10", "outstanding:24", "pending"}
		},
	}
	if clients == 30 { // what the paper ran
		h.claims = []Claim{
			{Figure: throughput, Side: side("pending"), Than: than("blind"), Least: 1.27, Most: 1.27},
			{Figure: ttftP90, Side: side("blind"), Than: than("pending"), Least: 18.47, Most: 18.47},
			{Figure: hitRate, Side: side("pending"), Least: 0.8986, Most: 0.8986},
			{Figure: hitRate, Side: side("blind"), Least: 0.6889, Most: 0.6889},
		}
		h.note = "pushing by pending requests gives 1.4 times the throughput of pushing by outstanding ones, whose bound the paper does not tell"
	}
	return h
}

// fig6 is SkyLB's figure 6: the hit rate of hashing by user against one balancer
// that sees what every replica holds and pushes there at once.
func fig6(name, title string, kind workload.Kind, clients int, gap float64) shape {
	const push = string(core.PushBlind)
	return shape{
		name: "fig6-" + name, title: "SkyLB fig. 6: hashing by user or a global view, " + title, workload: kind,
		replicas: [3]int{6}, clients: [3]int{clients},
		claims: []Claim{{
			Figure: hitRate, Side: Side{"longest-prefix", push}, Than: &Side{"consistent-hash", push}, Least: gap, Most: gap,
		}},
		change: func(s *Scenario) {
			s.Policies = []string{"consistent-hash", "skylb-ch", "least-load", "longest-prefix", "skylb"}
			s.Pushes = []string{push, string(core.PushPending)}
		},
	}
}
