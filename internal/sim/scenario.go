package sim

import (
	"fmt"
	"io"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
)

// Scenario is a service and its load: all parameters of a run except the policy under test and the
// seed.
type Scenario struct {
	Name     string
	Title    string // one-line description
	Workload workload.Kind
	// Lengths multiplies the medians of the workload's user and output lengths, Sigma the spread of
	// their logarithms; 1 = unchanged.
	Lengths, Sigma float64
	// Rate selects an open loop: the number of sessions (chats, trees) that start per second over all
	// regions, in proportion to their clients, with a Poisson process per region; each session then runs
	// like a client. 0 selects a closed loop.
	Rate float64
	// Trace, if set, is replayed instead of Workload: each request at its own time; Rate and Clients are
	// ignored.
	Trace *Trace
	// Surges raise the rate of a region for a period.
	Surges  []Surge
	Regions []Region
	Links   []Link
	// Engine is the model of replicas.
	Engine EngineModel
	// LocalRTT is the round-trip time inside a region.
	LocalRTT time.Duration
	// Home is the region of the balancer in layout Single.
	Home string
	// Profile is the profile of replicas whose region has none.
	Profile engine.Profile
	// Engines are the scenario's own profiles, which take precedence over built-in ones.
	Engines []engine.Profile
	// Duration is simulated time; figures exclude the share Warmup (0..1) at its start.
	Duration time.Duration
	Warmup   float64
	// Interval is the interval of replica probes, balancer heartbeats and ticks.
	Interval time.Duration
	// CacheEvents: engines publish the changes of their caches, and balancers know the contents exactly.
	CacheEvents bool
	// Forward allows balancers to send requests to each other.
	Forward bool
	// MaxNew is the smallest max_tokens of a request: clients have no information about the length of
	// their response.
	MaxNew int
	// MaxContext limits prompt plus response, in tokens.
	MaxContext int
	// Order, PeerQueueLimit, Unconfirmed (UnconfirmedLimit) and MaxWait are those of core.Config.
	// SkyLB's paper has no limit of unconfirmed requests.
	Order          core.QueueOrder
	PeerQueueLimit int
	Unconfirmed    int
	MaxWait        time.Duration
	// Think is the mean of the time, exponentially distributed, between a response and the requests that
	// its client issues next; 0 = none.
	Think time.Duration
	// ClientTimeout is the client timeout for a complete response; 0 = none.
	ClientTimeout time.Duration
	// Faults are the injected faults.
	Faults []Fault
	// Policies, Pushes and Layout are compared by default; none = all policies, each with its canonical
	// push mode and layout.
	Policies []string
	Pushes   []string
	Layout   Layout
	// Claims are a paper's claims about the comparison, Note is a remark about them.
	Claims []Claim
	Note   string
	// Reference holds, by policy, the results of a simulation that follows the SkyLB paper closely.
	Reference map[string]ReferenceValues
}

// Region is a place with clients and replicas.
type Region struct {
	Name     string
	Replicas int
	Clients  int
	// Profiles are the profiles of its replicas, repeated cyclically; none = the scenario's.
	Profiles []engine.Profile
	// Balancers share the replicas and clients of the region; 0 = 1. Layout Single ignores it.
	Balancers int
}

// Trace is a recorded sequence of requests and its origin. A run does not change it.
type Trace struct {
	Name, Format string
	// Open starts reading the requests; each run opens the trace, several concurrently.
	Open func() (Rows, error)
}

// Rows iterates over the requests of a trace.
type Rows interface {
	// Next returns the next row in order of time, or io.EOF; each row has a region of the scenario.
	Next() (workload.TraceRow, error)
	// Skipped returns the number of rows omitted so far because they exceed the context.
	Skipped() int
	// Close closes the trace.
	Close() error
}

// InMemory returns a Trace's Open for rows in memory and a number of omitted rows.
func InMemory(rows []workload.TraceRow, leftOut int) func() (Rows, error) {
	return func() (Rows, error) { return &rowList{rows, leftOut}, nil }
}

// rowList holds rows in memory.
type rowList struct {
	rows    []workload.TraceRow
	leftOut int
}

func (l *rowList) Next() (workload.TraceRow, error) {
	if len(l.rows) == 0 {
		return workload.TraceRow{}, io.EOF
	}
	row := l.rows[0]
	l.rows = l.rows[1:]
	return row, nil
}

func (l *rowList) Skipped() int { return l.leftOut }
func (*rowList) Close() error   { return nil }

// Surge multiplies the session rate of a region by Factor from From until To.
type Surge struct {
	Region   string
	From, To time.Duration
	Factor   float64
}

// Link is the round-trip time between two regions.
type Link struct {
	A, B string
	RTT  time.Duration
}

// ReferenceValues holds reference values of a policy.
type ReferenceValues struct {
	OutputTokensPerSecond float64
	TTFTP90Seconds        float64
}

// EngineModel is how replicas are simulated.
type EngineModel string

// The engine models.
const (
	// FullEngine simulates KV memory with a prefix cache.
	FullEngine EngineModel = "full"
	// LightEngine simulates only the lengths of prompts and responses, without a prefix cache: for
	// millions of requests, and for policies that ignore prefixes.
	LightEngine EngineModel = "light"
)

// Layout is the placement of balancers.
type Layout string

// The layouts.
const (
	// Single is one balancer, in the scenario's home region, for all replicas.
	Single Layout = "single"
	// Regional is balancers in each region, for the replicas there.
	Regional Layout = "regional"
)

// ParseLayout parses a layout.
func ParseLayout(text string) (Layout, error) {
	switch l := Layout(text); l {
	case Single, Regional:
		return l, nil
	}
	return "", fmt.Errorf("unknown layout %q: must be %s or %s", text, Single, Regional)
}

// Setup is the configuration under test.
type Setup struct {
	Policy string // a name of policy.Names
	Push   core.PushMode
	Layout Layout
	Seed   uint64
}

// balancers returns the number of balancers of a region.
func (r *Region) balancers() int { return max(1, r.Balancers) }

// profile returns the profile of the i-th replica of a region.
func (s *Scenario) profile(r *Region, i int) *engine.Profile {
	if len(r.Profiles) == 0 {
		return &s.Profile
	}
	return &r.Profiles[i%len(r.Profiles)]
}

// rtt returns the round-trip time between two regions, 0 if there is no link.
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

// delays returns the one-way delays between all regions.
func (s *Scenario) delays() [][]time.Duration {
	d := make([][]time.Duration, len(s.Regions))
	for i, a := range s.Regions {
		for _, b := range s.Regions {
			d[i] = append(d[i], s.rtt(a.Name, b.Name)/2)
		}
	}
	return d
}

// region returns the index of a region, -1 if there is none.
func (s *Scenario) region(name string) int {
	for i, r := range s.Regions {
		if r.Name == name {
			return i
		}
	}
	return -1
}

// unknownRegion returns the error of a region that the scenario does not have.
func (s *Scenario) unknownRegion(name string) error {
	names := make([]string, len(s.Regions))
	for i, r := range s.Regions {
		names[i] = r.Name
	}
	return fmt.Errorf("unknown region %q: must be one of %s", name, strings.Join(names, ", "))
}
