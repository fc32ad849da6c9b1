package sim

import (
	"fmt"

	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
)

// microShapes are experiments on a single aspect: SkyLB's figures 6 and 9 and SGLang's balanced groups.
// Each compares the policies of its source.
func microShapes() []shape {
	var all []shape
	for _, clients := range []int{30, 40, 45, 50, 60} {
		all = append(all, fig9(clients))
	}
	for _, clients := range []int{30, 40, 50} {
		all = append(all, fig9Trie(clients))
	}
	all = append(all,
		fig6("users", "users who share long prompts with each other", workload.Shared, 72, 0.1649, fittedPrompts),
		fig6("bursts", "users with up to four requests at once", workload.Bursts, 24, 0.0707, fittedUsers),
		fig6("programs", "users whose requests have different prompts", workload.Programs, 36, 0.0878, fittedPrompts),
	)
	return append(all, shape{
		name: "sglang-groups", title: "SGLang: 64 equally frequent groups of requests with long prompts, 8 replicas", workload: workload.Groups,
		replicas: [3]int{8}, clients: [3]int{128},
		claims: []Claim{
			level(hitRate, "round-robin", 0.20, 0.20),
			level(hitRate, "cache-aware", 0.75, 0.75),
			ratio(throughput, "cache-aware", "round-robin", 158_596.0/82_665),
		},
		change: func(s *Scenario) { s.Policies = []string{"round-robin", "cache-aware", "skylb", "cost"} },
	})
}

// The limits of outstanding requests in figure 9. The paper does not report its limit. It saw a full
// replica run 20 to 50 requests (3.3): 24 is near the low end and hardly overfills a replica; 10 shows
// the cost of a limit that is too low.
const (
	boundTooLow = "outstanding:10"
	boundFull   = "outstanding:24"
)

// pushing compares the push modes of a policy: blind (BP), by outstanding (SP-O) and by pending
// requests (SP-P), in one region, on trees with two branches.
func pushing(name, title, policy string, clients int) shape {
	return shape{
		name: fmt.Sprintf("%s-%d", name, clients), title: fmt.Sprintf("%s, trees of 15 requests, 4 replicas, %d clients", title, clients),
		workload: workload.ToT15, replicas: [3]int{4}, clients: [3]int{clients},
		change: func(s *Scenario) {
			s.Policies = []string{policy}
			s.Pushes = []string{string(core.PushBlind), boundTooLow, boundFull, string(core.PushPending)}
		},
	}
}

// fig9 is SkyLB's figure 9: push modes with SGLang's router. The paper ran 30 clients, with queues at
// its replicas according to its TTFT. The simulated profile has queues from 40 to 50 clients on, so the
// sweep includes those, and every scenario has the claims.
//
// A queue by itself costs no locality: an engine serves it in order, from the cache that its requests
// were sent for. Blind pushing costs throughput when one replica is a hot spot whose queue waits while
// others have capacity. Whether the router creates one depends on the assignment of questions: they all
// start alike, most for more than half their length, so that soon every replica matches equally well.
func fig9(clients int) shape {
	const router = "cache-aware:skylb"
	side := func(push string) Side { return Side{Policy: router, Push: push} }
	blind, pending, bound := side(string(core.PushBlind)), side(string(core.PushPending)), side(boundFull)
	h := pushing("fig9", "SkyLB fig. 9: push modes compared", router, clients)
	h.claims = []Claim{
		{Figure: throughput, Side: pending, Than: &blind, Min: 1.27, Max: 1.27},
		{Figure: ttftP90, Side: blind, Than: &pending, Min: 18.47, Max: 18.47},
		{Figure: hitRate, Side: pending, Min: 0.8986, Max: 0.8986},
		{Figure: hitRate, Side: blind, Min: 0.6889, Max: 0.6889},
		{Figure: throughput, Side: pending, Than: &bound, Min: 1.4, Max: 1.4},
	}
	h.note = "30 clients; the limit of outstanding requests is not reported: 24 is near the fewest requests that a full replica ran, 20"
	return h
}

// fig9Trie is figure 9 with SkyLB's own trie, which lacks the balancing rules of SGLang's router: it
// shows the imbalance of prefix matching alone, which selective pushing is designed for (3.3). The
// paper has no figure of it.
func fig9Trie(clients int) shape {
	h := pushing("fig9-trie", "SkyLB section 3.3: push modes compared with SkyLB's own prefix tree", "skylb", clients)
	h.note = "following prefixes leads to load imbalance, and must be combined with selective pushing (3.3); no figure shows it alone"
	return h
}

// Notes on the fitted workloads of figure 6: see workload.Shared and its like.
const (
	fittedPrompts = "reports the gap but not the workload: the 20 shared prompts are fitted to it"
	fittedUsers   = "reports the gap but not the workload: the 30 bursty users are fitted to it"
)

// fig6 is SkyLB's figure 6: the hit rate of hashing by user versus one balancer with a global view that
// pushes at once. The gap is the difference of the two rates. Its note describes the fit.
func fig6(name, title string, kind workload.Kind, clients int, gap float64, note string) shape {
	const push = string(core.PushBlind)
	return shape{
		name: "fig6-" + name, title: "SkyLB fig. 6: hashing by user versus a global view, " + title, workload: kind,
		replicas: [3]int{6}, clients: [3]int{clients},
		claims: []Claim{{
			Figure: hitRate, Side: Side{"longest-prefix", push}, Than: &Side{"consistent-hash", push}, Min: gap, Max: gap,
		}},
		note: note,
		change: func(s *Scenario) {
			s.Policies = []string{"consistent-hash", "skylb-ch", "least-load", "longest-prefix", "skylb"}
			s.Pushes = []string{push, string(core.PushPending)}
		},
	}
}
