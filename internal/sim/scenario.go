package sim

import (
	"fmt"
	"io"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
)

// Scenario is a service and its load: everything of a run but the policy under
// test and the seed.
type Scenario struct {
	Name     string
	Title    string // one line for people
	Workload workload.Kind
	// Lengths multiplies the medians of the workload's user and output lengths,
	// Sigma the spread of their logarithms; 1 = as the workload has them.
	Lengths, Sigma float64
	// Rate opens the loop: so many sessions (a chat, a tree) begin a second over
	// all regions, in proportion to their clients, each region's by a Poisson
	// process; each then runs to its end as a client's does. 0 closes the loop.
	Rate float64
	// Trace, when set, is replayed instead of Workload: each of its requests by
	// itself when it comes, Rate and Clients of no meaning.
	Trace *Trace
	// Surges raise the rate of a region for a time.
	Surges  []Surge
	Regions []Region
	Links   []Link
	// Engine is how replicas are modelled.
	Engine EngineModel
	// LocalRTT is the round trip inside a region.
	LocalRTT time.Duration
	// Home is the region of the balancer where there is only one.
	Home string
	// Profile is what a replica is, where its region does not say otherwise.
	Profile engine.Profile
	// Engines are profiles of the scenario's own, found by name before the
	// built-in ones.
	Engines []engine.Profile
	// Duration is simulated time; the share Warmup (0..1) of it at the start is
	// left out of every figure.
	Duration time.Duration
	Warmup   float64
	// Interval is the time between two probes of a replica, two heartbeats of a
	// balancer and two of its ticks.
	Interval time.Duration
	// Forward allows balancers to send requests to each other.
	Forward bool
	// MaxNew is the most tokens a client asks for, at least: it does not know
	// how long its answer will be.
	MaxNew int
	// MaxContext bounds prompt plus answer, in tokens.
	MaxContext int
	// Order, Tau and MaxWait are core.Config's.
	Order   core.Order
	Tau     int
	MaxWait time.Duration
	// Patience is how long a client waits for its whole answer before it gives
	// up; 0 = for ever.
	Patience time.Duration
	// Faults are what goes wrong.
	Faults []Fault
	// Policies, Pushes and Layout are compared where nothing else is asked for;
	// none = all policies, each as its source runs it.
	Policies []string
	Pushes   []string
	Layout   Layout
	// Claims are what a paper prints of the comparison, Note what it says of it
	// in words.
	Claims []Claim
	Note   string
	// Reference holds, by policy, what a faithful model of the SkyLB paper gave.
	Reference map[string]Reference
}

// Region is a place with clients and replicas.
type Region struct {
	Name     string
	Replicas int
	Clients  int
	// Profiles are what its replicas are, one after the other and then again
	// from the first; none = the scenario's.
	Profiles []engine.Profile
	// Balancers share the replicas of the region between them, and its clients;
	// 0 = 1. A layout of one balancer for all regions has no others.
	Balancers int
}

// Trace is requests as they came, and where from. It is not changed by a run.
type Trace struct {
	Name, Format string
	// Open begins to read the requests; each run reads them anew, several at the
	// same time.
	Open func() (Rows, error)
}

// Rows are the requests of a trace.
type Rows interface {
	// Next gives the next one, not before the one before it, or io.EOF; each
	// names a region of the scenario.
	Next() (workload.Row, error)
	// LeftOut is how many were left out so far because they do not fit.
	LeftOut() int
	// Close ends the reading.
	Close() error
}

// InMemory makes a Trace's Open of rows that are there, and the number of those
// that were left out.
func InMemory(rows []workload.Row, leftOut int) func() (Rows, error) {
	return func() (Rows, error) { return &rowList{rows, leftOut}, nil }
}

// rowList is rows in memory.
type rowList struct {
	rows    []workload.Row
	leftOut int
}

func (l *rowList) Next() (workload.Row, error) {
	if len(l.rows) == 0 {
		return workload.Row{}, io.EOF
	}
	row := l.rows[0]
	l.rows = l.rows[1:]
	return row, nil
}

func (l *rowList) LeftOut() int { return l.leftOut }
func (*rowList) Close() error   { return nil }

// Surge multiplies the rate of a region's sessions by Factor from From until To.
type Surge struct {
	Region   string
	From, To time.Duration
	Factor   float64
}

// Link is the round trip between two regions.
type Link struct {
	A, B string
	RTT  time.Duration
}

// Reference is a figure to compare with.
type Reference struct {
	OutputTokensPerSecond float64
	TTFTP90Seconds        float64
}

// EngineModel says how replicas are modelled.
type EngineModel string

// The models of engines.
const (
	// FullEngine has a KV memory with its prefix cache.
	FullEngine EngineModel = "full"
	// LightEngine keeps the lengths of prompts and answers only, and so finds
	// nothing in a cache: for millions of requests, and for policies that do not
	// look at prefixes.
	LightEngine EngineModel = "light"
)

// Layout says where balancers stand.
type Layout string

// The layouts.
const (
	// Single is one balancer, in the scenario's home region, for all replicas.
	Single Layout = "single"
	// Regional is one balancer a region, for the replicas there.
	Regional Layout = "regional"
)

// ParseLayout reads a layout as users write it.
func ParseLayout(text string) (Layout, error) {
	switch l := Layout(text); l {
	case Single, Regional:
		return l, nil
	}
	return "", fmt.Errorf("unknown layout %q: want %s or %s", text, Single, Regional)
}

// Setup is what is under test.
type Setup struct {
	Policy string // a name of policy.Names
	Push   core.Push
	Layout Layout
	Seed   uint64
}

// balancers is how many balancers a region has.
func (r *Region) balancers() int { return max(1, r.Balancers) }

// profile is what the i-th replica of a region is.
func (s *Scenario) profile(r *Region, i int) *engine.Profile {
	if len(r.Profiles) == 0 {
		return &s.Profile
	}
	return &r.Profiles[i%len(r.Profiles)]
}

// rtt is the round trip between two regions, 0 where none is given.
func (s *Scenario) rtt(a, b string) time.Duration {
	if a == b {
		return s.LocalRTT
	}
	for _, l := range s.Links {
		if l.A == a && l.B == b || l.A == b && l.B == a {
			return l.RTT
		}
	}
	return 0
}

// delays is the one-way delay between any two regions.
func (s *Scenario) delays() [][]time.Duration {
	d := make([][]time.Duration, len(s.Regions))
	for i, a := range s.Regions {
		for _, b := range s.Regions {
			d[i] = append(d[i], s.rtt(a.Name, b.Name)/2)
		}
	}
	return d
}

// region is the position of a region; Validate saw that the home exists.
func (s *Scenario) region(name string) int {
	for i, r := range s.Regions {
		if r.Name == name {
			return i
		}
	}
	return -1
}
