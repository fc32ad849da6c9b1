package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
)

// common holds the defaults of built-in scenarios: SkyLB 5.1's three regions, their round-trip times,
// and 400 s with 15 % warm-up.
var common = Scenario{
	Links:    []Link{{"us", "eu", 100 * time.Millisecond}, {"us", "asia", 160 * time.Millisecond}, {"eu", "asia", 220 * time.Millisecond}},
	Lengths:  1,
	Sigma:    1,
	LocalRTT: 2 * time.Millisecond,
	Home:     "us",
	Engine:   FullEngine,
	Profile:  engine.Profiles()[0],
	Duration: 400 * time.Second,
	Warmup:   0.15,
	Interval: 100 * time.Millisecond,
	Forward:  true,
	// The workloads limit responses to 512 tokens; clients request that many.
	MaxNew:         512,
	MaxContext:     workload.DefaultMaxContext,
	Order:          core.OrderFCFS,
	PeerQueueLimit: 10, // SkyLB's buffer for newly arriving requests
	// core.DefaultConfig's
	Unconfirmed: 4,
	MaxWait:     60 * time.Second,
}

// shape is the distinguishing part of a scenario. Counts are in the order us, eu, asia.
type shape struct {
	name, title string
	workload    workload.Kind
	replicas    [3]int
	clients     [3]int
	local       bool // balancers do not forward
	reference   string
	claims      []Claim
	note        string
	change      func(*Scenario) // other changes
}

// allShapes returns all shapes in the order of the scenario list.
func allShapes() []shape { return slices.Concat(paperShapes, microShapes(), ownShapes) }

// Scenarios returns the built-in scenarios in a fixed order. The caller owns the result.
func Scenarios() []Scenario {
	var all []Scenario
	for _, h := range allShapes() {
		all = append(all, h.scenario())
	}
	return all
}

// FindScenarios returns the scenario with that name, or all whose names start with it and a dash (fig10). The
// error for an unknown name lists the known ones.
func FindScenarios(name string) ([]Scenario, error) {
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
		return nil, fmt.Errorf("unknown scenario %q: must be one of %s, or a bfio-... or sage-... scenario of 'skyserve sim list'", name, strings.Join(names, ", "))
	}
	return found, nil
}

func (h *shape) scenario() Scenario {
	s := common
	s.Name, s.Title, s.Workload, s.Forward = h.name, h.title, h.workload, !h.local
	s.Links = append([]Link(nil), common.Links...)
	for i, name := range []string{"us", "eu", "asia"} {
		if h.replicas[i]+h.clients[i] > 0 {
			s.Regions = append(s.Regions, Region{Name: name, Replicas: h.replicas[i], Clients: h.clients[i]})
		}
	}
	s.Reference, s.Claims, s.Note = readReferences(h.reference), h.claims, h.note
	if h.change != nil {
		h.change(&s)
	}
	return s
}

// readReferences parses a shape's references; a test checks them all.
func readReferences(line string) map[string]ReferenceValues {
	refs := map[string]ReferenceValues{}
	for _, entry := range strings.Split(line, ", ") {
		var name string
		var r ReferenceValues
		if _, err := fmt.Sscan(entry, &name, &r.OutputTokensPerSecond, &r.TTFTP90Seconds); err == nil {
			refs[name] = r
		}
	}
	return refs
}
