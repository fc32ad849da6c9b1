package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

const (
	// maxRate limits the sessions per second, and so the cost of a run.
	maxRate = 100_000
	// maxDuration keeps all products of times within 64 bits.
	maxDuration = 1000 * time.Hour
	// maxThink keeps think times, which exceed their mean, within 64 bits.
	maxThink = 24 * time.Hour
	// maxFactor limits the factor of a surge.
	maxFactor = 1000
	// maxReplicas, maxBalancers (per region) and maxClients (in all regions together) limit the size of a scenario: a client
	// needs about 4 KB of memory.
	maxReplicas  = 100_000
	maxBalancers = 64
	maxClients   = 100_000
)

// SettingProblem is one error of a scenario: its path in settings and files (regions[1].replicas), and its
// description.
type SettingProblem struct {
	Path string
	Text string
}

// Error formats the problem in one line.
func (p SettingProblem) Error() string { return p.Path + ": " + p.Text }

// Validate returns the first problem of a scenario, or nil.
func (s *Scenario) Validate() error {
	if found := s.Problems(); len(found) > 0 {
		return fmt.Errorf("checking scenario %s: %w", s.Name, found[0])
	}
	return nil
}

// Problems returns all problems of a scenario.
func (s *Scenario) Problems() []SettingProblem {
	c := checker{s: s}
	c.numbers()
	c.checkLoad()
	c.regions()
	c.links()
	c.surges()
	c.faults()
	c.profiles()
	c.compared()
	return c.found
}

// checker collects the problems of a scenario.
type checker struct {
	s     *Scenario
	found []SettingProblem
}

// need adds a problem unless ok.
func (c *checker) need(ok bool, path, format string, args ...any) {
	if !ok {
		c.found = append(c.found, SettingProblem{path, fmt.Sprintf(format, args...)})
	}
}

func (c *checker) numbers() {
	s := c.s
	c.need(s.Duration > 0, "duration", "must be greater than 0, got %s", s.Duration)
	c.need(s.Duration <= maxDuration, "duration", "must be at most %s, got %s", maxDuration, s.Duration)
	c.need(s.Warmup >= 0 && s.Warmup < 1, "warmup", "must be at least 0 and below 1, got %v", s.Warmup)
	c.need(s.Interval >= time.Millisecond, "interval", "must be at least 1ms, got %s", s.Interval)
	c.need(s.LocalRTT > 0, "local_rtt", "must be greater than 0, got %s", s.LocalRTT)
	c.need(s.MaxNew >= 1, "min_max_tokens", "must be at least 1, got %d", s.MaxNew)
	c.need(s.MaxContext >= workload.MinContext && s.MaxContext < s.minKV(), "max_context",
		"must be at least %d and below the %d KV tokens of a replica, got %d", workload.MinContext, s.minKV(), s.MaxContext)
	_, err := core.ParseOrder(string(s.Order))
	c.need(err == nil, "order", "%v", err)
	c.need(s.PeerQueueLimit >= 0, "peer_queue_limit", "must be at least 0, got %d", s.PeerQueueLimit)
	c.need(s.Unconfirmed >= 1, "unconfirmed", "must be at least 1, got %d", s.Unconfirmed)
	c.need(s.MaxWait > 0, "max_wait", "must be greater than 0, got %s", s.MaxWait)
	c.need(s.Think >= 0 && s.Think <= maxThink, "think", "must be at least 0s and at most %s, got %s", maxThink, s.Think)
	c.need(s.ClientTimeout >= 0, "client_timeout", "must be at least 0, got %s", s.ClientTimeout)
}

// checkLoad checks the load parameters.
func (c *checker) checkLoad() {
	s := c.s
	c.need(s.Trace != nil || workload.IsKnown(string(s.Workload)), "workload", "must be %s, got %q", workload.KindList(), s.Workload)
	c.need(s.Engine == FullEngine || s.Engine == LightEngine, "engine", "must be %s or %s, got %q", FullEngine, LightEngine, s.Engine)
	c.need(s.Lengths > 0 && s.Lengths <= workload.MaxLengths, "lengths", "must be greater than 0 and at most %d, got %v", workload.MaxLengths, s.Lengths)
	c.need(s.Sigma > 0 && s.Sigma <= workload.MaxSigma, "length_spread", "must be greater than 0 and at most %d, got %v", workload.MaxSigma, s.Sigma)
	c.need(s.Rate >= 0 && s.Rate <= maxRate, "rate", "must be at least 0 and at most %d sessions per second, got %v", maxRate, s.Rate)
}

func (c *checker) regions() {
	replicas, clients := 0, 0
	for i, r := range c.s.Regions {
		path := fmt.Sprintf("regions[%d]", i)
		c.need(r.Name != "", path+".name", "must not be empty")
		c.need(r.Replicas >= 0 && r.Replicas <= maxReplicas, path+".replicas", "must be at least 0 and at most %d, got %d", maxReplicas, r.Replicas)
		c.need(r.Clients >= 0 && r.Clients <= maxClients, path+".clients", "must be at least 0 and at most %d, got %d", maxClients, r.Clients)
		c.need(r.Balancers >= 0 && r.Balancers <= maxBalancers, path+".balancers", "must be at least 0 and at most %d, got %d", maxBalancers, r.Balancers)
		replicas, clients = replicas+max(0, r.Replicas), clients+max(0, r.Clients)
		c.need(c.s.region(r.Name) == i, path+".name", "duplicate region %q", r.Name)
	}
	c.need(replicas > 0, "regions", "must have at least one replica, got none")
	c.need(clients > 0 || c.s.Trace != nil, "regions", "must have at least one client, got none")
	c.need(clients <= maxClients, "regions", "must have at most %d clients together, got %d", maxClients, clients)
	c.need(len(c.s.Regions) == 0 || c.s.region(c.s.Home) >= 0, "home", "%v", c.s.unknownRegion(c.s.Home))
}

// links checks that all regions are connected.
func (c *checker) links() {
	for i, a := range c.s.Regions {
		for _, b := range c.s.Regions[:i] {
			rtt := c.s.rtt(b.Name, a.Name)
			c.need(rtt > 0 || a.Name == b.Name, "links", "the round-trip time between %s and %s must be greater than 0, got %s", b.Name, a.Name, rtt)
		}
	}
}

// linkProblems returns the links that do not join regions. They are problems in a file only: a scenario without links
// of its own may have the default ones of regions that it lacks.
func (s *Scenario) linkProblems() []SettingProblem {
	c := checker{s: s}
	for i, l := range s.Links {
		path := fmt.Sprintf("links[%d]", i)
		c.region(l.A, path+".a")
		c.region(l.B, path+".b")
	}
	return c.found
}

func (c *checker) surges() {
	for i := range c.s.Surges {
		u, path := &c.s.Surges[i], fmt.Sprintf("surges[%d]", i)
		c.need(c.s.region(u.Region) >= 0, path+".region", "%v", c.s.unknownRegion(u.Region))
		c.need(u.From >= 0 && u.To > u.From, path, "must end after it starts, got %s to %s", u.From, u.To)
		c.need(u.Factor >= 0 && u.Factor <= maxFactor, path+".factor", "must be at least 0 and at most %d, got %v", maxFactor, u.Factor)
		c.need(c.s.Rate > 0, path, "requires an open loop: set rate")
	}
}

func (c *checker) faults() {
	for i := range c.s.Faults {
		f, path := &c.s.Faults[i], fmt.Sprintf("faults[%d]", i)
		c.fault(f, path)
		for k := range c.s.Faults[:i] {
			o := &c.s.Faults[k]
			c.need(!o.same(f) || f.From >= c.s.end(o) || o.From >= c.s.end(f), path, "%s: overlaps faults[%d], which affects the same target", f.Kind, k)
		}
	}
}

func (c *checker) fault(f *Fault, path string) {
	c.need(f.From >= 0 && f.To >= 0 && (f.To == 0 || f.To > f.From), path, "must end after it starts, got %s to %s", f.From, f.To)
	switch f.Kind {
	case ReplicaDown:
		c.replica(f.Replica, path)
	case ReplicaSlow:
		c.need(f.Factor >= 1 && f.Factor <= maxSlowdown, path+".factor", "must be at least 1 and at most %d, got %v", maxSlowdown, f.Factor)
		c.replica(f.Replica, path)
	case LinkCut:
		c.region(f.Region, path+".region")
		c.region(f.Peer, path+".peer")
		c.need(f.Region != f.Peer, path+".peer", "must differ from region %q", f.Region)
	case ProbeLoss:
		c.need(f.Share >= 0 && f.Share <= 1, path+".share", "must be at least 0 and at most 1, got %v", f.Share)
		c.scope(f, path)
	case ReportDelay:
		c.need(f.Delay > 0 && f.Delay <= maxReportDelay, path+".delay", "must be greater than 0 and at most %s, got %s", maxReportDelay, f.Delay)
		c.scope(f, path)
	case NoMetrics:
		c.scope(f, path)
	case BalancerDown:
		c.region(f.Region, path+".region")
		if at := c.s.region(f.Region); at >= 0 {
			limit := c.s.Regions[at].balancers()
			c.need(f.Balancer >= 0 && f.Balancer <= limit, path+".balancer", "must be at least 0 (all) and at most %d, got %d", limit, f.Balancer)
		}
	default:
		c.need(false, path+".kind", "must be one of %s, got %q", faultKindList(), f.Kind)
		return
	}
	used := usedFields[f.Kind]
	for _, field := range f.fields() {
		c.need(slices.Contains(used, field.key), path+"."+field.key, "is not a key of %s: must be one of kind, from, to, %s", f.Kind, strings.Join(used, ", "))
	}
}

// scope checks the targets of a probe fault.
func (c *checker) scope(f *Fault, path string) {
	if f.Replica != "" {
		c.replica(f.Replica, path)
		c.need(f.Region == "", path+".region", "conflicts with replica")
	} else if f.Region != "" {
		c.region(f.Region, path+".region")
	}
}

func (c *checker) region(name, path string) {
	c.need(c.s.region(name) >= 0, path, "%v", c.s.unknownRegion(name))
}

func (c *checker) replica(id, path string) {
	for _, r := range c.s.Regions {
		for i := range min(r.Replicas, maxReplicas) {
			if id == replicaID(r.Name, i) {
				return
			}
		}
	}
	c.need(false, path+".replica", "unknown replica %q: the first replica of region us is us-01", id)
}

func (c *checker) profiles() {
	check := func(p *engine.Profile, path string) {
		err := p.Validate()
		c.need(err == nil, path, "%v", err)
	}
	check(&c.s.Profile, "profile")
	for i := range c.s.Regions {
		for k := range c.s.Regions[i].Profiles {
			check(&c.s.Regions[i].Profiles[k], fmt.Sprintf("regions[%d].profiles[%d]", i, k))
		}
	}
}

// compared checks the default policies and push modes.
func (c *checker) compared() {
	for _, name := range c.s.Policies {
		_, err := policy.New(name)
		c.need(err == nil, "policies", "%v", err)
	}
	for _, mode := range c.s.Pushes {
		_, err := core.ParsePush(mode)
		c.need(err == nil, "pushes", "%v", err)
	}
}

// minKV returns the KV memory of the smallest replica, in tokens.
func (s *Scenario) minKV() int {
	minimum := 0
	for i := range s.Regions {
		r := &s.Regions[i]
		for k := range min(r.Replicas, max(1, len(r.Profiles))) {
			if kv := s.profile(r, k).KVTokens; minimum == 0 || kv < minimum {
				minimum = kv
			}
		}
	}
	if minimum == 0 {
		return s.Profile.KVTokens
	}
	return minimum
}
