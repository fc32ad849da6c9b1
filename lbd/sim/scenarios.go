package sim

import (
	"fmt"
	"strings"
	"time"

	"skyserve/internal/workload"
	"skyserve/lbd/engine"
)

// What the scenarios have in common: SkyLB 5.1's three regions, their round
// trips, and 400 s of which the first 15 % are not counted.
var common = Scenario{
	Links:    []Link{{"us", "eu", 100 * time.Millisecond}, {"us", "asia", 160 * time.Millisecond}, {"eu", "asia", 220 * time.Millisecond}},
	LocalRTT: 2 * time.Millisecond,
	Home:     "us",
	Profile:  engine.Profiles()[0],
	Duration: 400 * time.Second,
	Warmup:   0.15,
	Interval: 100 * time.Millisecond,
	Forward:  true,
	// The workloads cap answers at 512 tokens; clients ask for that many.
	MaxNew:     512,
	MaxContext: workload.DefaultMaxContext,
	Tau:        10,               // SkyLB's buffer for newly arriving requests
	MaxWait:    60 * time.Second, // core.DefaultConfig's
}

// shape is what distinguishes one scenario from the others. Counts stand in the
// order us, eu, asia.
type shape struct {
	name, title string
	workload    workload.Kind
	replicas    [3]int
	clients     [3]int
	local       bool // balancers do not forward
	reference   string
}

// References are output tokens a second and P90 TTFT in seconds of a faithful
// model of the SkyLB paper, by policy.
var shapes = []shape{
	{
		"fig8a", "SkyLB fig. 8a: chats of Chatbot Arena, 8 replicas", workload.Arena,
		[3]int{3, 2, 3},
		[3]int{80, 80, 80},
		false,
		"round-robin 2127 8.2, least-load 2396 3.5, consistent-hash 1757 38, cache-aware:skylb 2340 9.1, skylb-ch 2370 1.8, skylb 2405 2.0, cost 2843 1.7",
	},
	{
		"fig8b", "SkyLB fig. 8b: chats of WildChat, 8 replicas", workload.WildChat,
		[3]int{3, 2, 3},
		[3]int{40, 30, 30},
		false,
		"round-robin 1229 1.5, least-load 1317 1.2, consistent-hash 1159 16, cache-aware:skylb 1360 0.8, skylb-ch 1377 0.6, skylb 1412 0.52, cost 1437 0.44",
	},
	{
		"fig8c", "SkyLB fig. 8c: trees of thoughts of 15 requests, 12 replicas", workload.ToT15,
		[3]int{4, 4, 4},
		[3]int{40, 20, 20},
		false,
		"round-robin 2451 0.63, least-load 2605 0.71, consistent-hash 3220 0.40, cache-aware:skylb 2779 0.79, skylb-ch 3139 0.19, skylb 3161 0.26, cost 3280 0.17",
	},
	{
		"fig8d", "SkyLB fig. 8d: trees of 85 requests in the US, of 15 elsewhere, 12 replicas", workload.Mixed,
		[3]int{4, 4, 4},
		[3]int{2, 20, 20},
		false,
		"round-robin 1799 0.63, least-load 1853 0.70, consistent-hash 2116 0.42, cache-aware:skylb 1911 0.77, skylb-ch 2120 0.17, skylb 2150 0.19, cost 2201 0.17",
	},
	{
		"tot30", "trees of thoughts of 30 requests, 12 replicas", workload.ToT30,
		[3]int{4, 4, 4},
		[3]int{40, 20, 20},
		false,
		"round-robin 3083 34, least-load 3226 32, consistent-hash 5230 4.9, cache-aware:skylb 4724 5.0, skylb-ch 5071 1.5, skylb 5252 1.3, cost 5698 1.3",
	},
	{
		"fig10-12", "SkyLB fig. 10: chats, uneven regions, 12 replicas", workload.Arena,
		[3]int{4, 4, 4},
		[3]int{120, 40, 40},
		false,
		"skylb 2550 0.52, cost 2854 0.24",
	},
	{
		"fig10-12-local", "SkyLB fig. 10: the same, each region for itself", workload.Arena,
		[3]int{4, 4, 4},
		[3]int{120, 40, 40},
		true,
		"skylb 2541 0.72",
	},
	{
		"fig10-9", "SkyLB fig. 10: chats, uneven regions, 9 replicas", workload.Arena,
		[3]int{3, 3, 3},
		[3]int{120, 40, 40},
		false,
		"skylb 2300 1.0, cost 2673 0.26",
	},
	{
		"fig10-9-local", "SkyLB fig. 10: the same, each region for itself", workload.Arena,
		[3]int{3, 3, 3},
		[3]int{120, 40, 40},
		true,
		"skylb 2066 9.0",
	},
}

// Scenarios lists the scenarios that ship, in a fixed order. The caller owns
// the result.
func Scenarios() []Scenario {
	var all []Scenario
	for i := range shapes {
		all = append(all, shapes[i].scenario())
	}
	return all
}

// Named finds scenarios: the one of that name, or all whose names begin with it
// and a dash (fig10). An unknown name is an error that lists the known ones.
func Named(name string) ([]Scenario, error) {
	var found []Scenario
	var names []string
	for _, s := range Scenarios() {
		if s.Name == name {
			return []Scenario{s}, nil
		}
		if strings.HasPrefix(s.Name, name+"-") {
			found = append(found, s)
		}
		names = append(names, s.Name)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("unknown scenario %q: want one of %s", name, strings.Join(names, ", "))
	}
	return found, nil
}

func (h *shape) scenario() Scenario {
	s := common
	s.Name, s.Title, s.Workload, s.Forward = h.name, h.title, h.workload, !h.local
	s.Links = append([]Link(nil), common.Links...)
	for i, name := range []string{"us", "eu", "asia"} {
		s.Regions = append(s.Regions, Region{Name: name, Replicas: h.replicas[i], Clients: h.clients[i]})
	}
	s.Reference = readReferences(h.reference)
	return s
}

// readReferences reads the table's own lines; a test reads them all.
func readReferences(line string) map[string]Reference {
	refs := map[string]Reference{}
	for _, entry := range strings.Split(line, ", ") {
		var name string
		var r Reference
		if _, err := fmt.Sscan(entry, &name, &r.OutputTokensPerSecond, &r.TTFTP90Seconds); err == nil {
			refs[name] = r
		}
	}
	return refs
}
