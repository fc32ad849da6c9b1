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

// What the scenarios have in common: SkyLB 5.1's three regions, their round
// trips, and 400 s of which the first 15 % are not counted.
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
	// The workloads cap answers at 512 tokens; clients ask for that many.
	MaxNew:     512,
	MaxContext: workload.DefaultMaxContext,
	Order:      core.OrderFCFS,
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
	claims      []Claim
	note        string
	change      func(*Scenario) // what else is different
}

// allShapes lists every shape in the order in which scenarios are listed.
func allShapes() []shape { return slices.Concat(paperShapes, microShapes(), ownShapes) }

// Scenarios lists the scenarios that ship, in a fixed order. The caller owns
// the result.
func Scenarios() []Scenario {
	var all []Scenario
	for _, h := range allShapes() {
		all = append(all, h.scenario())
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
