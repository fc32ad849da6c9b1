package policy

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"time"
)

// Maybe is a figure that may be unknown: an engine that exports no metrics has
// no pending count, and none is not zero. It is null in JSON when unknown.
type Maybe[T any] struct {
	Value T
	Known bool
}

// Known makes a figure that is known.
func Known[T any](v T) Maybe[T] { return Maybe[T]{Value: v, Known: true} }

// Or is the figure, or instead when it is unknown.
func (m Maybe[T]) Or(instead T) T {
	if m.Known {
		return m.Value
	}
	return instead
}

// Ptr is a pointer to the figure, nil when it is unknown.
func (m Maybe[T]) Ptr() *T {
	if !m.Known {
		return nil
	}
	return &m.Value
}

// MarshalJSON writes the figure, or null.
func (m Maybe[T]) MarshalJSON() ([]byte, error) {
	if !m.Known {
		return []byte("null"), nil
	}
	return json.Marshal(m.Value)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (m *Maybe[T]) UnmarshalJSON(b []byte) error {
	*m = Maybe[T]{}
	if string(b) == "null" {
		return nil
	}
	m.Known = true
	return json.Unmarshal(b, &m.Value)
}

// Candidate is a place a request could go: a replica of this balancer, or a
// peer. Candidates come sorted, replicas first, then peers, each by id.
type Candidate struct {
	ID   string
	Peer bool
	// Live: it answers and may be sent requests, even if none just now.
	Live bool
	// Available: the push rule allows another request there now.
	Available bool
	// Outstanding is what this balancer sent there and has not seen end.
	Outstanding int
	// Unconfirmed is the part of Outstanding that the last report cannot have seen.
	Unconfirmed int
	// Pending, Running and KV are the replica's own figures (KV: used share,
	// 0..1). A peer has KV only: the mean over its replicas.
	Pending Maybe[int]
	Running Maybe[int]
	KV      Maybe[float64]
	// PendingFor is for how long its reports have told of something pending without
	// a break.
	PendingFor time.Duration
	// Queued is a peer's queue as last reported plus what was forwarded since.
	Queued int
	// Held is how many waiting requests are kept for it.
	Held int
	// Residence is the mean time from a send there to its end; 0 = not known.
	Residence time.Duration
	// Prefilling is how many prompt tokens of what was sent there are still to be
	// computed before their first token, what is cached left out.
	Prefilling int
	// Pace is the time between two tokens of an answer there over that of the
	// nominal replica (NominalStep) under the same load, as learned from answers:
	// 2 = half as fast. It is 0 or 1 where nothing was learned.
	Pace float64
	// Context is how many tokens the requests sent there attend to: prompts, and
	// answers so far.
	Context int
	// Replicas, PeerOutstanding and Wait are a peer's own word: how many replicas
	// answer there, what is outstanding at them, and how long a request that
	// nothing is known of would be held now.
	Replicas        int
	PeerOutstanding int
	Wait            time.Duration
	// RTT is the round trip to a peer; 0 for a replica.
	RTT time.Duration
	// Match is how many bytes of the prompt the candidate is thought to hold.
	Match int
	// Overtaken: another replica was sent the end of that match later, so that this
	// one's engine is the likelier to have evicted it.
	Overtaken bool
	// Cached is how many bytes of prefixes the candidate is thought to hold in
	// all. Like Match, it is 0 for policies that do not use prefixes.
	Cached int
	// Remaining is how many tokens of what was sent there are still to be
	// processed, prompts and answers, as the balancer estimates it.
	Remaining int
	// Age is how old its last report is.
	Age time.Duration
	// Score is Choose's own finding, for whoever asks why: the expected cost in
	// seconds, lower is better. Unknown where the policy does not score, or left
	// the candidate out.
	Score Maybe[float64]
}

// Facts is all that a policy may look at. It is valid during Choose only.
type Facts struct {
	ID           string        // of the request
	Now          time.Duration // since the balancer's epoch
	Model        string
	Session      string
	PromptBytes  int           // bytes that Match is measured against
	PromptTokens int           // an estimate
	MaxTokens    int           // the most that its answer can take; 0 = no bound
	Waited       time.Duration // in the queue so far
	Queued       int           // how many wait for the model, this one included
	Candidates   []Candidate
}

// Wait is the index of a choice that leaves the request in the queue.
const Wait = -1

// Choice is where a request goes and why.
type Choice struct {
	Index int // into Facts.Candidates, or Wait
	// Hold: it waits until Index has room, and those behind it go on.
	Hold   bool
	Reason string // one of the Reason constants
}

// Reasons for a choice: short, stable words that label metrics and headers.
const (
	ReasonNoneAvailable = "none_available"
	ReasonRotation      = "rotation"
	ReasonLeastLoad     = "least_load"
	ReasonPrefixMatch   = "prefix_match"
	ReasonPrefixMiss    = "prefix_miss"
	ReasonOffload       = "offload"
	ReasonPowerOfTwo    = "power_of_two"
	ReasonSession       = "session"
	ReasonImbalance     = "imbalance"
	ReasonRemaining     = "fewest_remaining"
	ReasonCheapest      = "least_cost"
)

// Policy chooses where a request goes. Its memory (a rotation's position) is
// its own; two policies fed the same facts in the same order choose the same.
type Policy interface {
	// Name is the word that selects the policy in service.yaml.
	Name() string
	// Traits says what the policy needs of the balancer; it never changes.
	Traits() Traits
	// Choose picks among the candidates.
	Choose(*Facts) Choice
}

// Traits is what a policy needs of the balancer.
type Traits struct {
	// Prefix: Candidate.Match and Cached must be filled in.
	Prefix bool
	// Regions: it weighs this region against others itself, so it must see the
	// peers also while a replica of this region is available.
	Regions bool
	// Holds: it may leave a request waiting for one full candidate while those
	// behind it in the queue go on.
	Holds bool
}

// makers is every policy by name.
var makers = map[string]func() Policy{
	"round-robin":     func() Policy { return &RoundRobin{} },
	"least-load":      func() Policy { return &LeastLoad{} },
	"skylb":           func() Policy { return NewSkyLB() },
	"power-of-two":    func() Policy { return NewPowerOfTwo() },
	"consistent-hash": func() Policy { return NewConsistentHash() },
	"skylb-ch":        func() Policy { return NewSkyLBCH() },
	"longest-prefix":  func() Policy { return NewLongestPrefix() },
	"cache-aware":     func() Policy { return NewCacheAware(CacheAwareLater()) },
	"sageserve":       func() Policy { return NewSageServe() },
	"cost":            func() Policy { return NewCost() },
	"bf-io":           func() Policy { return NewBFIO(DefaultBFIO()) },
	// The preset that comparisons with SkyLB's paper need; not a word of service.yaml.
	"cache-aware:skylb": func() Policy { return NewCacheAware(CacheAwareSkyLB()) },
}

// selective are the policies whose authors hold requests back at the balancer.
var selective = map[string]bool{"skylb": true, "skylb-ch": true, "longest-prefix": true, "cost": true}

// CanonicalPush is the push rule that a policy is meant to be compared at, as
// its source runs it: pending for SkyLB's policies and longest-prefix, blind for
// the others, whose sources send at once. A name that is not known gets pending.
// It is not a service's default, which is pending for every policy.
func CanonicalPush(name string) string {
	if _, known := makers[name]; known && !selective[name] {
		return "blind"
	}
	return "pending"
}

// New makes a policy by its name; an unknown name is an error that lists the names.
func New(name string) (Policy, error) {
	if m, ok := makers[name]; ok {
		return m(), nil
	}
	return nil, fmt.Errorf("unknown policy %q: want one of %s", name, strings.Join(Names(), ", "))
}

// Names lists the policies, sorted.
func Names() []string {
	names := make([]string, 0, len(makers))
	for n := range makers {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// layer is the part of the candidates that SkyLB's two layers offer (Algorithm
// 1, line 28): the replicas of this balancer while any is available, else the
// peers. It returns a half-open range of indices; peer tells which layer.
func layer(cs []Candidate) (from, to int, peer bool) {
	split := firstPeer(cs)
	for i := range split {
		if cs[i].Available {
			return 0, split, false
		}
	}
	return split, len(cs), true
}

// firstPeer is where the peers begin among the candidates.
func firstPeer(cs []Candidate) int {
	for i := range cs {
		if cs[i].Peer {
			return i
		}
	}
	return len(cs)
}

// reason names a choice by its layer: any choice of a peer is an offload.
func reason(local string, peer bool) string {
	if peer {
		return ReasonOffload
	}
	return local
}

// rotation breaks ties in turn: the next id after the one it chose last.
type rotation struct{ last string }

// next picks, of the indices for which ok holds, the first whose id comes after
// the last choice, else the first of all. It returns Wait when none holds.
func (r *rotation) next(cs []Candidate, from, to int, ok func(*Candidate) bool) int {
	first := Wait
	for i := from; i < to; i++ {
		if !ok(&cs[i]) {
			continue
		}
		if cs[i].ID > r.last {
			r.last = cs[i].ID
			return i
		}
		if first == Wait {
			first = i
		}
	}
	if first != Wait {
		r.last = cs[first].ID
	}
	return first
}
