package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fleet is what a Strategy looks at: every endpoint, and the VMs that nobody
// holds. Counts are replicas, one on a VM.
type Fleet struct {
	// Endpoints in a fixed order, which also decides between equals.
	Endpoints []Endpoint
	// Spare is how many VMs can be launched beyond those held and lent, by region;
	// a region that is not named has none.
	Spare map[string]int
}

// Endpoint is the replicas of one model in one region that serve the same
// requests (SageServe section 2.1).
type Endpoint struct {
	Model, Region string
	// Pool tells apart endpoints of a model and region that share no traffic, as
	// interactive and deferred work do in silos; empty where there is one.
	Pool string
	// Ready serve, Starting do not yet, Draining finish what they have and take
	// nothing new, Donated are lent to the spot pool with the model's weights.
	Ready, Starting, Draining, Donated int
	// Min and Max bound Ready + Starting.
	Min, Max int
	// Utilisation is the effective memory utilisation of the ready replicas, 0..1:
	// KV memory in use over KV memory there is, weights excluded. Nil = unknown.
	Utilisation *float64
	// Observed is the interactive prompt tokens a second of the last minute. Nil = unknown.
	Observed *float64
	// Waiting is how many interactive requests are known to wait for their first token:
	// held for a replica, or at one. Nil = unknown.
	Waiting *int
	// Fast is the first tokens of IW-F requests up to now. Nil = unknown.
	Fast *FirstTokens
	// Target is the plan in force; nil = none.
	Target *Target
}

// FirstTokens counts first tokens since any time in the past. Where a count is less
// than before, it began anew.
type FirstTokens struct {
	// All came, Late of them after the tier's target.
	All, Late int64
}

// Target is what the hourly plan wants of an endpoint, and what it expects.
type Target struct {
	Count int
	// Replicas is the count by GPU and capacity type; nil = whatever there is.
	Replicas []ReplicaTarget
	// From and Until bound the time that it holds for, on the clock of Step.
	From, Until time.Duration
	// ReplicaTPS is what one replica carries, in prompt tokens a second; 0 = unknown.
	ReplicaTPS float64
	// PeakTPS is the load that was planned for, in prompt tokens a second, its
	// buffer included.
	PeakTPS float64
	// Course is the forecast of the interactive load by CourseStep from From on,
	// in prompt tokens a second; empty = unknown.
	Course     []float64
	CourseStep time.Duration
}

// at is the forecast for a time, the last known one beyond its end; ok is false
// where there is none.
func (t *Target) at(now time.Duration) (tps float64, ok bool) {
	if t == nil || len(t.Course) == 0 || t.CourseStep <= 0 {
		return 0, false
	}
	i := int((now - t.From) / t.CourseStep)
	return t.Course[min(max(i, 0), len(t.Course)-1)], true
}

// key names an endpoint.
type key struct{ model, region, pool string }

func (e *Endpoint) key() key { return key{e.Model, e.Region, e.Pool} }

// count is what bounds and targets speak of.
func (e *Endpoint) count() int { return e.Ready + e.Starting }

// Scaling is what happens to one endpoint now. Replicas are added by Reclaim,
// Redeploy and Launch, and given up by Donate or Remove, never both.
type Scaling struct {
	// Endpoint is its index in the Fleet.
	Endpoint int
	// Reclaim is how many replicas come back from the spot pool with their weights
	// in place: about a minute (SageServe section 7.1).
	Reclaim int
	// Redeploy takes lent VMs of other endpoints and loads this model there: about
	// ten minutes.
	Redeploy []Redeploy
	// Launch is how many new VMs are started.
	Launch int
	// Donate is how many replicas drain and are then lent to the spot pool, Remove
	// how many drain and are then given back to the cloud.
	Donate, Remove int
	// Reason says in words why.
	Reason string
}

// Redeploy is lent VMs that change their model.
type Redeploy struct {
	From  int // the endpoint whose weights they have, an index in the Fleet
	Count int
}

// Added is how many replicas are started.
func (s *Scaling) Added() int {
	n := s.Reclaim + s.Launch
	for _, r := range s.Redeploy {
		n += r.Count
	}
	return n
}

// GivenUp is how many replicas are drained.
func (s *Scaling) GivenUp() int { return s.Donate + s.Remove }

// Strategy decides how many replicas to have as time goes on (SageServe sections
// 4 and 6.4). It is a state machine: the same fleets at the same times give the
// same scalings, and time must not go backwards. It asks for nothing that would
// take an endpoint below its Min or above its Max.
type Strategy interface {
	// Name is the word that selects it in service.yaml.
	Name() string
	// Step says what to change now; nothing when all is well. It is meant to be
	// called every few seconds.
	Step(now time.Duration, f *Fleet) []Scaling
}

// StrategyOptions is what is common to all strategies.
type StrategyOptions struct {
	// Keep says that VMs that are given up go back to the cloud, instead of being
	// lent to the spot pool.
	Keep bool
	// Late is the share, 0..1, of IW-F requests whose first token auto lets come after
	// the tier's target; 0 = DefaultLate.
	Late float64
}

// strategies makes each by its name.
var strategies = map[string]func(StrategyOptions) Strategy{
	"reactive": func(o StrategyOptions) Strategy { return newReactive(o) },
	"lt-i":     func(o StrategyOptions) Strategy { return newPaced("lt-i", o) },
	"lt-u":     func(o StrategyOptions) Strategy { return newPaced("lt-u", o) },
	"lt-ua":    func(o StrategyOptions) Strategy { return newPaced("lt-ua", o) },
	"auto":     func(o StrategyOptions) Strategy { return newAuto(o) },
}

// StrategyNames lists the strategies: the paper's from the simplest on, then ours.
func StrategyNames() []string { return []string{"reactive", "lt-i", "lt-u", "lt-ua", "auto"} }

// FollowsPlan tells whether a strategy goes by the plan of the hour.
func FollowsPlan(strategy string) bool { return strategy != "reactive" }

// NewStrategy makes a strategy by its name; an unknown name is an error that
// lists the names.
func NewStrategy(name string, o StrategyOptions) (Strategy, error) {
	if m, ok := strategies[name]; ok {
		return m(o), nil
	}
	return nil, fmt.Errorf("unknown strategy %q: want one of %s", name, strings.Join(StrategyNames(), ", "))
}

// The constants of SageServe sections 4 and 6.4.
const (
	// scaleOutAbove and scaleInBelow are effective memory utilisations.
	scaleOutAbove = 0.70
	scaleInBelow  = 0.30
	// scaleCooldown is the least time between two scalings of an endpoint.
	scaleCooldown = 15 * time.Second
)

// cooldown remembers when each endpoint was scaled last.
type cooldown map[key]time.Duration

// over says whether an endpoint may be scaled again.
func (c cooldown) over(e *Endpoint, now time.Duration) bool {
	last, ok := c[e.key()]
	return !ok || now-last >= scaleCooldown
}

// grants turns wishes into scalings. Two endpoints that want the same lent VM
// get it in the order of the fleet.
type grants struct {
	fleet   *Fleet
	keep    bool
	donated []int          // by endpoint, still to be had
	spare   map[string]int // by region, the same
	out     []Scaling
}

func newGrants(f *Fleet, o StrategyOptions) *grants {
	g := &grants{fleet: f, keep: o.Keep, donated: make([]int, len(f.Endpoints)), spare: make(map[string]int, len(f.Spare))}
	for i := range f.Endpoints {
		g.donated[i] = f.Endpoints[i].Donated
		region := f.Endpoints[i].Region
		g.spare[region] = f.Spare[region]
	}
	return g
}

// want asks for n more replicas of an endpoint, or -n fewer, and reports whether
// any of that can be.
func (g *grants) want(i, n int, reason string) bool {
	e := &g.fleet.Endpoints[i]
	s := Scaling{Endpoint: i, Reason: reason}
	if n > 0 {
		g.add(&s, e, min(n, e.Max-e.count()))
	} else if give := min(-n, e.Ready-e.Min); give > 0 {
		if g.keep {
			s.Remove = give
		} else {
			s.Donate = give
		}
	}
	if s.Added() == 0 && s.GivenUp() == 0 {
		return false
	}
	g.out = append(g.out, s)
	return true
}

// add finds VMs for n replicas, the quickest first: lent ones that have the
// model's weights, then those of other models, then new ones (SageServe section
// 6.4).
func (g *grants) add(s *Scaling, e *Endpoint, n int) {
	for _, i := range g.lenders(s.Endpoint, e) {
		if n <= 0 {
			return
		}
		take := min(n, g.donated[i])
		n -= take
		g.donated[i] -= take
		if i == s.Endpoint {
			s.Reclaim = take
		} else {
			s.Redeploy = append(s.Redeploy, Redeploy{i, take})
		}
	}
	if take := min(n, g.spare[e.Region]); take > 0 {
		g.spare[e.Region] -= take
		s.Launch = take
	}
}

// lenders lists the endpoints of a region with VMs to be had: the endpoint
// itself, those of its model, then those that lend most.
func (g *grants) lenders(self int, e *Endpoint) []int {
	var all []int
	for i := range g.fleet.Endpoints {
		if g.donated[i] > 0 && g.fleet.Endpoints[i].Region == e.Region {
			all = append(all, i)
		}
	}
	rank := func(i int) int {
		switch {
		case i == self:
			return 0
		case g.fleet.Endpoints[i].Model == e.Model:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b int) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return g.donated[b] - g.donated[a]
	})
	return all
}
