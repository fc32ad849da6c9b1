package sim

import "skyserve/internal/sim/workload"

// paperShapes are the end-to-end experiments of the SkyLB paper (5.1) and its figure 10. References are,
// by policy, output tokens per second and P90 TTFT in seconds of a simulation that follows it closely;
// claims are the paper's own.
var paperShapes = []shape{
	{
		name: "fig8a", title: "SkyLB fig. 8a: chats of Chatbot Arena, 8 replicas", workload: workload.Arena,
		replicas: [3]int{3, 2, 3}, clients: [3]int{80, 80, 80},
		reference: "round-robin 2127 8.2, least-load 2396 3.5, consistent-hash 1757 38, cache-aware:skylb 2340 9.1, skylb-ch 2370 1.8, skylb 2405 2.0, cost 2843 1.7",
		claims: []Claim{
			ratio(throughput, "skylb", "least-load", 1/0.9738),
			level(hitRate, "skylb", 0.3696, 0.4655),
			level(hitRate, "round-robin", 0.1078, 0.1657),
			level(hitRate, "least-load", 0.2829, 0.3113),
		},
		note: "hit rates are reported for both chat workloads together; SkyLB's throughput is 1.12 to 1.2 times that of single balancers",
	},
	{
		name: "fig8b", title: "SkyLB fig. 8b: chats of WildChat, 8 replicas", workload: workload.WildChat,
		replicas: [3]int{3, 2, 3}, clients: [3]int{40, 30, 30},
		reference: "round-robin 1229 1.5, least-load 1317 1.2, consistent-hash 1159 16, cache-aware:skylb 1360 0.8, skylb-ch 1377 0.6, skylb 1412 0.52, cost 1437 0.44",
		claims: []Claim{
			ratio(throughput, "skylb", "least-load", 1/0.9738),
			level(hitRate, "skylb", 0.3696, 0.4655),
			level(hitRate, "round-robin", 0.1078, 0.1657),
			level(hitRate, "least-load", 0.2829, 0.3113),
		},
		note: "hit rates are reported for both chat workloads together; SkyLB's throughput is 1.12 to 1.2 times that of single balancers",
	},
	{
		name: "fig8c", title: "SkyLB fig. 8c: trees of thoughts of 15 requests, 12 replicas", workload: workload.ToT15,
		replicas: [3]int{4, 4, 4}, clients: [3]int{40, 20, 20},
		reference: "round-robin 2451 0.63, least-load 2605 0.71, consistent-hash 3220 0.40, cache-aware:skylb 2779 0.79, skylb-ch 3139 0.19, skylb 3161 0.26, cost 3280 0.17",
		claims: []Claim{
			ratio(throughput, "consistent-hash", "skylb", 1.02),
			ratio(throughput, "consistent-hash", "least-load", 1.4),
		},
	},
	{
		name: "fig8d", title: "SkyLB fig. 8d: trees of 85 requests in the US, of 15 in other regions, 12 replicas", workload: workload.Mixed,
		replicas: [3]int{4, 4, 4}, clients: [3]int{2, 20, 20},
		reference: "round-robin 1799 0.63, least-load 1853 0.70, consistent-hash 2116 0.42, cache-aware:skylb 1911 0.77, skylb-ch 2120 0.17, skylb 2150 0.19, cost 2201 0.17",
		claims: []Claim{
			level(imbalance, "consistent-hash", 3.36, 3.36),
			level(imbalance, "cache-aware:skylb", 2.22, 2.22),
		},
	},
	{
		name: "tot30", title: "trees of thoughts of 30 requests, 12 replicas", workload: workload.ToT30,
		replicas: [3]int{4, 4, 4}, clients: [3]int{40, 20, 20},
		reference: "round-robin 3083 34, least-load 3226 32, consistent-hash 5230 4.9, cache-aware:skylb 4724 5.0, skylb-ch 5071 1.5, skylb 5252 1.3, cost 5698 1.3",
	},
	{
		name: "fig10-12", title: "SkyLB fig. 10: chats, uneven regions, 12 replicas", workload: workload.Arena,
		replicas: [3]int{4, 4, 4}, clients: [3]int{120, 40, 40},
		reference: "skylb 2550 0.52, cost 2854 0.24",
		note:      fig10Note,
	},
	{
		name: "fig10-12-local", title: "SkyLB fig. 10: the same without forwarding", workload: workload.Arena,
		replicas: [3]int{4, 4, 4}, clients: [3]int{120, 40, 40},
		local:     true,
		reference: "skylb 2541 0.72",
		note:      fig10Note,
	},
	{
		name: "fig10-9", title: "SkyLB fig. 10: chats, uneven regions, 9 replicas", workload: workload.Arena,
		replicas: [3]int{3, 3, 3}, clients: [3]int{120, 40, 40},
		reference: "skylb 2300 1.0, cost 2673 0.26",
		note:      fig10Note,
	},
	{
		name: "fig10-9-local", title: "SkyLB fig. 10: the same without forwarding", workload: workload.Arena,
		replicas: [3]int{3, 3, 3}, clients: [3]int{120, 40, 40},
		local:     true,
		reference: "skylb 2066 9.0",
		note:      fig10Note,
	},
	{
		name: "fig10-6", title: "SkyLB fig. 10: chats, uneven regions, 6 replicas", workload: workload.Arena,
		replicas: [3]int{2, 2, 2}, clients: [3]int{120, 40, 40},
		note: fig10Note,
	},
	{
		name: "fig10-6-local", title: "SkyLB fig. 10: the same without forwarding", workload: workload.Arena,
		replicas: [3]int{2, 2, 2}, clients: [3]int{120, 40, 40},
		local: true,
		note:  fig10Note,
	},
	{
		name: "fig10-tot-12", title: "SkyLB fig. 10 with trees of thoughts, uneven regions, 12 replicas", workload: workload.ToT15,
		replicas: [3]int{4, 4, 4}, clients: [3]int{120, 40, 40},
		reference: "skylb 4324 6.7, cost 5824 2.8",
	},
	{
		name: "fig10-tot-12-local", title: "SkyLB fig. 10: the same without forwarding", workload: workload.ToT15,
		replicas: [3]int{4, 4, 4}, clients: [3]int{120, 40, 40},
		local: true,
	},
	{
		name: "fig10-tot-9", title: "SkyLB fig. 10 with trees of thoughts, uneven regions, 9 replicas", workload: workload.ToT15,
		replicas: [3]int{3, 3, 3}, clients: [3]int{120, 40, 40},
		reference: "skylb 3164 28, cost 4433 14.5",
	},
	{
		name: "fig10-tot-9-local", title: "SkyLB fig. 10: the same without forwarding", workload: workload.ToT15,
		replicas: [3]int{3, 3, 3}, clients: [3]int{120, 40, 40},
		local: true,
	},
}

// fig10Note is the paper's result of figure 10, which compares scenarios.
const fig10Note = "SkyLB's throughput is 1.07 to 1.18 times that of regions without forwarding, and 9 replicas match 12"
