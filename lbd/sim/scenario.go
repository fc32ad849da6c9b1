package sim

import (
	"errors"
	"fmt"
	"time"

	"skyserve/internal/workload"
	"skyserve/lbd/core"
	"skyserve/lbd/engine"
)

// Scenario is a service and its load: everything of a run but the policy under
// test and the seed.
type Scenario struct {
	Name     string
	Title    string // one line for people
	Workload workload.Kind
	Regions  []Region
	Links    []Link
	// LocalRTT is the round trip inside a region.
	LocalRTT time.Duration
	// Home is the region of the balancer where there is only one.
	Home    string
	Profile engine.Profile
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
	// Tau and MaxWait are core.Config's.
	Tau     int
	MaxWait time.Duration
	// Patience is how long a client waits for its whole answer before it gives
	// up; 0 = for ever.
	Patience time.Duration
	// Reference holds, by policy, what a faithful model of the SkyLB paper gave.
	Reference map[string]Reference
}

// Region is a place with clients and replicas.
type Region struct {
	Name     string
	Replicas int
	Clients  int
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

// Validate says what makes a scenario impossible to run, or nil.
func (s *Scenario) Validate() error {
	if err := s.validateNumbers(); err != nil {
		return fmt.Errorf("checking scenario %s: %w", s.Name, err)
	}
	if err := s.validateRegions(); err != nil {
		return fmt.Errorf("checking scenario %s: %w", s.Name, err)
	}
	return s.Profile.Validate()
}

func (s *Scenario) validateNumbers() error {
	switch {
	case s.Duration <= 0:
		return fmt.Errorf("duration: must be more than zero, got %s", s.Duration)
	case !(s.Warmup >= 0 && s.Warmup < 1):
		return fmt.Errorf("warmup: must be at least 0 and below 1, got %v", s.Warmup)
	case s.Interval < time.Millisecond:
		return fmt.Errorf("interval: must be at least 1ms, got %s", s.Interval)
	case s.LocalRTT <= 0:
		return fmt.Errorf("local_rtt: must be more than zero, got %s", s.LocalRTT)
	case s.MaxNew < 1:
		return fmt.Errorf("max_new: must be at least 1, got %d", s.MaxNew)
	case s.MaxContext < workload.MinContext || s.MaxContext >= s.Profile.KVTokens:
		return fmt.Errorf("max_context: must be at least %d and below the %d KV tokens of a replica, got %d", workload.MinContext, s.Profile.KVTokens, s.MaxContext)
	case s.Tau < 0:
		return fmt.Errorf("tau: must be at least 0, got %d", s.Tau)
	case s.MaxWait <= 0:
		return fmt.Errorf("max_wait: must be more than zero, got %s", s.MaxWait)
	case s.Patience < 0:
		return fmt.Errorf("patience: must be at least 0, got %s", s.Patience)
	case !workload.Known(string(s.Workload)):
		return fmt.Errorf("workload: unknown %q", s.Workload)
	}
	return nil
}

func (s *Scenario) validateRegions() error {
	replicas, clients, home := 0, 0, false
	for i, r := range s.Regions {
		if r.Replicas < 0 || r.Clients < 0 {
			return fmt.Errorf("region %s: counts must be at least 0, got %d replicas and %d clients", r.Name, r.Replicas, r.Clients)
		}
		replicas, clients, home = replicas+r.Replicas, clients+r.Clients, home || r.Name == s.Home
		for _, o := range s.Regions[:i] {
			if o.Name == r.Name {
				return fmt.Errorf("region %s: stands there twice", r.Name)
			}
			if rtt := s.rtt(r.Name, o.Name); rtt <= 0 {
				return fmt.Errorf("round trip between %s and %s: must be more than zero, got %s", o.Name, r.Name, rtt)
			}
		}
	}
	switch {
	case replicas == 0:
		return errors.New("want at least one replica, got none")
	case clients == 0:
		return errors.New("want at least one client, got none")
	case !home:
		return fmt.Errorf("home: no region is called %q", s.Home)
	}
	return nil
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
