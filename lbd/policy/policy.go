package policy

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"time"
)

// Maybe is a value that may be unknown: an engine without metrics has no pending count, which is
// different from zero. It is null in JSON when unknown.
type Maybe[T any] struct {
	Value T
	Known bool
}

// Known returns a known value.
func Known[T any](v T) Maybe[T] { return Maybe[T]{Value: v, Known: true} }

// Or returns the value, or fallback if it is unknown.
func (m Maybe[T]) Or(fallback T) T {
	if m.Known {
		return m.Value
	}
	return fallback
}

// Ptr returns a pointer to the value, nil if it is unknown.
func (m Maybe[T]) Ptr() *T {
	if !m.Known {
		return nil
	}
	return &m.Value
}

// MarshalJSON encodes the value, or null.
func (m Maybe[T]) MarshalJSON() ([]byte, error) {
	if !m.Known {
		return []byte("null"), nil
	}
	return json.Marshal(m.Value)
}

// UnmarshalJSON decodes the output of MarshalJSON.
func (m *Maybe[T]) UnmarshalJSON(b []byte) error {
	*m = Maybe[T]{}
	if string(b) == "null" {
		return nil
	}
	m.Known = true
	return json.Unmarshal(b, &m.Value)
}

// Candidate is a possible target of a request: a replica of this balancer, or a peer. Candidates
// are sorted: replicas first, then peers, each by id.
type Candidate struct {
	ID   string
	Peer bool
	// Live: it responds and can receive requests, even if not right now.
	Live bool
	// Available: another request may be sent there now. For a replica, the push rule decides. For a
	// peer, it means that its recent report has an available replica and a short queue. Traits.Peers
	// with Traits.Holds changes the rule for peers, see Traits.
	Available bool
	// Outstanding is the number of requests that this balancer sent there and that have not ended,
	// plus failed requests that still count as load (lbd/core/failedload.go). Context and Remaining
	// include those too.
	Outstanding int
	// Unconfirmed is the part of Outstanding without a first token that was sent too recently to be
	// included in the figures of the last report.
	Unconfirmed int
	// Pending, Running and KV are the replica's own figures (KV: utilisation, 0..1), Pending without the
	// requests that have had their first token since. A peer has only KV: the mean over its replicas.
	Pending Maybe[int]
	Running Maybe[int]
	KV      Maybe[float64]
	// PendingFor is the time for which its reports have continuously contained pending
	// requests.
	PendingFor time.Duration
	// Queued is a peer's queue as last reported, plus the requests forwarded since then that exceed
	// its available replicas.
	Queued int
	// Held is the number of waiting requests held for it.
	Held int
	// Residence is the mean time from sending a request there to its end; 0 = unknown. A peer reports
	// it as the mean over its replicas.
	Residence time.Duration
	// Prefilling is the number of uncached prompt tokens that are still to be computed, of all
	// requests sent there. For a peer, it is the lowest one of its replicas as last reported, plus
	// the mean per replica of its unconfirmed requests.
	Prefilling int
	// Pace is the time between two tokens of an answer there, divided by that of the nominal replica
	// (NominalStep) under the same load, as learned from responses: 2 = half as fast. Until something
	// was learned, it is that of the fastest replica of the model, or 1. 0 also counts as 1.
	Pace float64
	// Context is the number of tokens that the requests sent there attend to: prompts, and answers
	// so far. A peer reports it for all requests at its replicas, whichever balancer sent them.
	Context int
	// Replicas, PeerOutstanding and Wait are reported by a peer: its live replicas, the requests
	// outstanding there, and the time for which a request without known prefix would be queued
	// now, after the unconfirmed requests.
	Replicas        int
	PeerOutstanding int
	Wait            time.Duration
	// RTT is the round-trip time to a peer; 0 for a replica.
	RTT time.Duration
	// Match is the number of bytes of the prompt that the candidate is expected to have
	// cached.
	Match int
	// Overtaken: the text at the end of the longest match of all replicas was last sent to another
	// replica, so this one's engine is more likely to have evicted it.
	Overtaken bool
	// Cached is the total number of bytes of prefixes that the candidate is expected to have
	// cached. Like Match, it is 0 for policies that do not use prefixes.
	Cached int
	// Remaining is the estimated number of tokens still to be processed, of prompts and
	// answers of the requests sent there.
	Remaining int
	// Age is the age of its figures: of its last report, or more if its engine updates them rarely.
	Age time.Duration
	// Score is set by Choose to explain the choice: the expected cost in seconds, lower is better.
	// It is unknown if the policy has no scores or excluded the candidate.
	Score Maybe[float64]
}

// Facts is the complete input of a policy. It is valid only during Choose.
type Facts struct {
	ID           string        // of the request
	Now          time.Duration // since the balancer's epoch
	Model        string
	Session      string
	PromptBytes  int // the length that Match is compared with
	PromptTokens int // estimated
	// Prefixes are hashes of the prompt's prefixes: element i is that of its first i+1 blocks (prefix.BlockBytes).
	// Two prompts with an equal element begin equally.
	Prefixes     []uint64
	MaxTokens    int           // bound of its answer; 0 = no bound
	AnswerTokens float64       // mean length of the model's answers; 0 = none has ended
	Waited       time.Duration // since it arrived, or since its stream broke; includes failed attempts
	MaxWait      time.Duration // the maximum of Waited for an interactive request here; 0 = unknown
	Queued       int           // requests that wait for the model, including this one, without parked deferred ones (core.DeferredRule)
	// EvictedShare is the share of the prompt tokens computed by the model's engines that they had computed before
	// and evicted, 0..1. If it is high, whatever is computed evicts what other requests need.
	EvictedShare float64
	Candidates   []Candidate
}

// Wait is the index of a choice that leaves the request in the queue.
const Wait = -1

// Choice is the chosen target of a request, with the reason.
type Choice struct {
	Index int // into Facts.Candidates, or Wait
	// Hold: the chosen replica is full, or earlier requests are held for it. The request stays in the
	// queue and counts as Held there, and requests behind it may overtake it. Choose is called again
	// for it when capacity changes.
	Hold   bool
	Reason string // one of the Reason constants
}

// Reasons of a choice: short, stable codes that label metrics and headers.
const (
	ReasonNoneAvailable = "none_available"
	ReasonRotation      = "rotation"
	ReasonLeastLoad     = "least_load"
	ReasonPrefixMatch   = "prefix_match"
	ReasonPrefixMiss    = "prefix_miss"
	ReasonForward       = "offload" // of any forward to a peer: a name that metrics, headers and record files keep. It is not the KV offloading of engines.
	ReasonPowerOfTwo    = "power_of_two"
	ReasonSession       = "session"
	ReasonImbalance     = "imbalance"
	ReasonRemaining     = "fewest_remaining"
	ReasonLeastCost     = "least_cost"
	ReasonLowestProduct = "lowest_product"
	ReasonLowestTTFT    = "lowest_ttft"
	ReasonScorerSum     = "scorer_sum"
	ReasonSaturated     = "saturated"
)

// Policy chooses targets for requests. Its state (such as the position of a rotation) is its own.
// Two policies that receive the same facts in the same order make the same choices.
type Policy interface {
	// Name returns the name that selects the policy in service.yaml.
	Name() string
	// Traits returns what the policy needs from the balancer; it never changes.
	Traits() Traits
	// Choose selects an available candidate, or Wait, or holds the request for a full replica. The
	// balancer does not check whether the chosen candidate is available.
	Choose(*Facts) Choice
}

// Traits is what a policy needs from the balancer. A policy with both Peers and Holds decides itself
// whether a peer is too busy: for it, every peer is available that reported recently, has a live
// replica of the model and did not just bounce a request.
type Traits struct {
	// Prefix: Candidate.Match and Cached must be set. In a Pool they are always 0.
	Prefix bool
	// Peers: it compares this balancer's replicas with the peers itself, so it must receive the
	// peers even while a replica of this balancer is available.
	Peers bool
	// Holds: it may hold a request for one full replica while requests behind it are sent. It also
	// changes the queue: requests that are equal in its order are sorted by the start of their session,
	// within core.Config.SessionLead, instead of by arrival.
	Holds bool
}

// constructors contains every policy by name.
var constructors = map[string]func() Policy{
	"round-robin":     func() Policy { return &RoundRobin{} },
	"least-load":      func() Policy { return &LeastLoad{} },
	"skylb":           func() Policy { return NewSkyLB() },
	"power-of-two":    func() Policy { return NewPowerOfTwo() },
	"consistent-hash": func() Policy { return NewConsistentHash() },
	"skylb-ch":        func() Policy { return NewSkyLBCH() },
	"longest-prefix":  func() Policy { return NewLongestPrefix() },
	"cache-aware":     func() Policy { return NewCacheAware(CacheAwareSGLang()) },
	"sageserve":       func() Policy { return NewSageServe() },
	"cost":            func() Policy { return NewCost() },
	"bf-io":           func() Policy { return NewBFIO(DefaultBFIO()) },
	"lmetric":         func() Policy { return NewLMetric() },
	"gorgo":           func() Policy { return NewGORGO() },
	"dualmap":         func() Policy { return NewDualMap() },
	"scorer-sum":      func() Policy { return NewScorerSum() },
	"sticky":          func() Policy { return NewSticky() },
	// The preset for comparisons with SkyLB's paper; not allowed in service.yaml.
	"cache-aware:skylb": func() Policy { return NewCacheAware(CacheAwareSkyLB()) },
}

// pushesSelectively contains the policies that are designed to queue requests at the balancer.
var pushesSelectively = map[string]bool{"skylb": true, "skylb-ch": true, "longest-prefix": true, "cost": true}

// CanonicalPush returns the push rule of the paper or project that a policy comes from, for
// comparisons: pending for SkyLB's policies, longest-prefix and cost, blind for the others, which
// send every request immediately. For an unknown name it returns pending. It is not a service's
// default, which is pending for every policy.
func CanonicalPush(name string) string {
	if _, known := constructors[name]; known && !pushesSelectively[name] {
		return "blind"
	}
	return "pending"
}

// New returns a policy by name. The error for an unknown name lists the valid ones.
func New(name string) (Policy, error) {
	if m, ok := constructors[name]; ok {
		return m(), nil
	}
	return nil, fmt.Errorf("unknown policy %q: must be one of %s", name, strings.Join(Names(), ", "))
}

// Names returns the names of the policies, sorted.
func Names() []string {
	names := make([]string, 0, len(constructors))
	for n := range constructors {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// layer returns one of SkyLB's two layers of candidates (Algorithm 1, line 28): all replicas of this
// balancer while any is available, else all peers, available or not. The result is a half-open range
// of indices; peer is true for the layer of peers.
func layer(cs []Candidate) (from, to int, peer bool) {
	split := firstPeer(cs)
	for i := range split {
		if cs[i].Available {
			return 0, split, false
		}
	}
	return split, len(cs), true
}

// firstPeer returns the index of the first peer among the candidates.
func firstPeer(cs []Candidate) int {
	for i := range cs {
		if cs[i].Peer {
			return i
		}
	}
	return len(cs)
}

// reason returns the reason of a choice: local for a replica, ReasonForward for any peer.
func reason(local string, peer bool) string {
	if peer {
		return ReasonForward
	}
	return local
}

// rotation breaks ties by rotation: it selects the next id after the last choice.
type rotation struct{ last string }

// nextTarget selects among the indices for which ok is true: the first whose id is after the last
// choice, else the first of all. It returns Wait if there is none.
func (r *rotation) nextTarget(cs []Candidate, from, to int, ok func(*Candidate) bool) int {
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
