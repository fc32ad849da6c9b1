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

// Candidate is a possible target of a request: a replica of this balancer, or a peer. Of a replica with
// data-parallel ranks, each rank is a candidate (see Rank). Candidates are sorted: replicas first, then
// peers, each by id.
type Candidate struct {
	ID   string
	Peer bool
	// Live: it reported ready recently, no connection to it has failed since, and it is not draining or
	// ejected. It may still not be available.
	Live bool
	// Available: another request may be sent there now. For a live replica, three things decide: its circuit breaker,
	// core.ReplicaInfo.MaxOutstanding, and the service's push mode. The push mode (core.PushMode) is blind (always send),
	// pending (send while the engine has no pending requests and few are unconfirmed) or a limit of outstanding requests. A
	// peer must have reported an available replica, and its Queued must be at most core.Config.PeerQueueLimit and at most
	// the length of the queue here. A policy with both Traits.Peers and Traits.Holds has another rule for peers, see Traits.
	Available bool
	// Outstanding is the number of requests that this balancer sent there and that have not ended. A
	// request that failed early still counts for some time, also in ContextTokens and RemainingTokens.
	// Otherwise, a replica that fails every request would appear idle.
	Outstanding int
	// Unconfirmed is the number of outstanding requests that the last report cannot include: they were sent after its
	// figures were measured, and have no first token yet. At a peer, only requests for Facts.Model count.
	Unconfirmed int
	// Pending, Running and KV are from the replica's last report. KV is the utilisation of its KV
	// cache, 0..1. The balancer lowers Pending if requests have started since, and sets Running and KV to zero
	// if all running ones have ended. A peer has only KV: the mean over its replicas.
	Pending Maybe[int]
	Running Maybe[int]
	KV      Maybe[float64]
	// PendingFor is the time for which its reports have contained pending requests without interruption.
	PendingFor time.Duration
	// Queued is the length of a peer's queue: the last reported length + max(0, Unconfirmed - replicas that the report
	// showed as available). Each of these replicas is expected to start one request.
	Queued int
	// Held is the number of other queued requests that are held for this replica (Choice.Hold).
	Held int
	// Residence is the mean time from the send to the end of requests served there; 0 = unknown. A peer
	// reports it as the mean over its replicas.
	Residence time.Duration
	// PrefillTokens is the number of uncached prompt tokens that are still to be computed, of all
	// requests sent there. For a peer, it is the lowest value among its replicas in the last report,
	// plus the tokens of its unconfirmed requests divided by the number of replicas.
	PrefillTokens int
	// JoinsPrefill is whether the last request was sent there less than a decode step ago. Its prompt and that of another
	// request are then probably computed in the same step. It is known only for replicas, and only with Traits.Holds.
	JoinsPrefill bool
	// Pace is the time per output token there, divided by the time per output token of the nominal
	// replica (see CostConstants) under the same load. A larger pace is slower: 2 = half as fast. It is
	// learned from streamed responses. Before the first, it is the pace of the fastest replica of the
	// model, or 1. 0 counts as 1.
	Pace float64
	// ContextTokens is the number of tokens in the contexts of the requests sent there: prompts, and
	// responses so far. A peer reports it for all requests that it sent to its replicas.
	ContextTokens int
	// Replicas, PeerOutstanding and ExpectedWait are from a peer's last report: the number of its live
	// replicas, the number of requests outstanding there, and the expected time in its queue for a
	// request without a cached prefix. To ExpectedWait, this balancer has added the expected wait for its unconfirmed
	// requests there.
	Replicas        int
	PeerOutstanding int
	ExpectedWait    time.Duration
	// RTT is the round-trip time to a peer; 0 for a replica.
	RTT time.Duration
	// MatchBytes is the number of bytes of the prompt that the candidate is expected to have cached.
	MatchBytes int
	// SupersededBytes is the number of leading bytes of the match that were last sent to another replica. This replica's
	// engine used them longer ago, so it is more likely to have evicted them. It is 0 for a peer.
	SupersededBytes int
	// InUseBytes is the number of leading bytes of the match that a request outstanding there has too: their memory is in
	// use already. It is known only for replicas, and only if Facts.SharedPrefix; otherwise it is 0.
	InUseBytes int
	// CachedBytes is the total number of bytes of prefixes that the candidate is expected to have
	// cached. Like MatchBytes, it is 0 for policies that do not use prefixes.
	CachedBytes int
	// RemainingTokens is the estimated number of tokens still to be processed: of the prompts and
	// responses of the requests sent there.
	RemainingTokens int
	// Age is the age of a replica's figures, which are older than its last report if the engine updates
	// its metrics rarely. For a peer, it is the age of the last report.
	Age time.Duration
	// Score is the expected cost of the request there in seconds. Cost sets it to explain its choice; it is unknown
	// with other policies, and for a candidate that Cost excluded.
	Score Maybe[float64]
}

// Facts is the complete input of a policy. It is valid only during Choose.
type Facts struct {
	// ID is the request's id.
	ID string
	// Now is the time since the balancer started.
	Now     time.Duration
	Model   string
	Session string
	// PromptBytes is the number of bytes in the whole blocks (prefix.BlockBytes) of the prompt, like
	// MatchBytes; 0 if the prompt is shorter than a block.
	PromptBytes int
	// PromptTokens is an estimate.
	PromptTokens int
	// PrefixHashes[i] is the hash of the first i+1 blocks of the prompt. Two
	// prompts with equal hashes at i have these blocks in common.
	PrefixHashes []uint64
	// MaxTokens is the client's limit on the response; 0 = no limit.
	MaxTokens int
	// ResponseTokens is the mean length of the model's responses; 0 = unknown.
	ResponseTokens float64
	// Waited is the time since the request arrived, or, if its response stream broke, since then. It includes failed
	// attempts.
	Waited time.Duration
	// MaxWait is the value of Waited at which an interactive request is rejected; 0 = unknown. If the model scales to
	// zero, the request may be rejected later: Waited includes the time for which the model was cold, and that time
	// does not count towards MaxWait.
	MaxWait time.Duration
	// Queued is the number of requests in the queue of the model, including this one. It excludes parked requests:
	// deferred ones that may not be sent yet (core.DeferredRule).
	Queued int
	// EvictedShare is the share, 0..1, of the computed prompt tokens that the model's engines had to compute again because
	// they had evicted them. If it is high, computing any prompt evicts prefixes that other requests need.
	EvictedShare float64
	// SupersededShare is the share, 0..1, of Candidate.SupersededBytes that the model's engines still
	// had in their caches, over recent requests; unknown until a request with such a match has ended.
	SupersededShare Maybe[float64]
	// SharedPrefix: in an earlier request, the longest match of the replicas is followed by text that this prompt does not
	// have. The match is then a prefix such as a system prompt, and more requests will probably share it. For the next turn
	// of a conversation, SharedPrefix is false: no earlier request continues after the match.
	SharedPrefix bool
	// PrefixUses is about the number of earlier requests of this balancer with the longest match of the replicas; 0 for the
	// text of a single conversation (prefix.Found.Uses).
	PrefixUses int
	// CachedShare is the mean share, 0..1, of a prompt that engines found in their caches, over the recent
	// requests of all models; 0 until an engine has reported it.
	CachedShare float64
	Candidates  []Candidate
}

// Wait is the index of a choice that leaves the request in the queue. After Choose has returned it, the
// model's requests behind this one wait too, unless the policy has Traits.Holds, or this request may be
// sent to fewer targets than others, for example after a failure.
const Wait = -1

// none is the result of a search among candidates that finds nothing. It equals Wait, because the
// request then stays in the queue.
const none = Wait

// Choice is the chosen target of a request, with the reason.
type Choice struct {
	Index int // index in Facts.Candidates, or Wait
	// Hold: the request stays in the queue and waits for the chosen replica, because the replica is not available or
	// earlier requests are held for it. Requests behind this one may be sent before it.
	//
	// The balancer evaluates held requests again while a replica of their model is available, and when a peer has reported.
	// It first ends all holds of the model's requests. Then it calls Choose in the order of the queue, so that
	// Candidate.Held counts only requests ahead.
	Hold   bool
	Reason string // one of the Reason constants
}

// Reasons of a choice: short, stable codes that label metrics and headers. Each says what the target is.
const (
	ReasonNoneAvailable = "none_available"   // no target: the reason of every Wait, also if a request waits although a peer is available (Cost)
	ReasonRotation      = "rotation"         // the next in turn
	ReasonLeastLoad     = "least_load"       // the one with the fewest outstanding requests
	ReasonPrefixMatch   = "prefix_match"     // the one with the longest match; DualMap compares only two candidates, Sticky only unsaturated ones
	ReasonPrefixMiss    = "prefix_miss"      // no match is long enough: the one with the least load, or with CacheAware the fewest cached bytes
	ReasonForward       = "offload"          // a peer (unrelated to the KV cache offloading of engines)
	ReasonPowerOfTwo    = "power_of_two"     // the better of two candidates: PowerOfTwo draws them at random, DualMap hashes the prefix
	ReasonSession       = "session"          // the session's target on the hash ring
	ReasonImbalance     = "imbalance"        // the least loaded one, whatever the matches: loads differ too much
	ReasonRemaining     = "fewest_remaining" // the one with the fewest remaining tokens
	ReasonLeastCost     = "least_cost"       // the one with the lowest cost: see Cost
	ReasonLowestProduct = "lowest_product"   // the one with the lowest product: see LMetric
	ReasonLowestTTFT    = "lowest_ttft"      // the one with the lowest expected time to the first token
	ReasonScorerSum     = "scorer_sum"       // the one with the highest sum of scores: see ScorerSum
	ReasonSaturated     = "saturated"        // the least loaded one, because every candidate is saturated
)

// Policy chooses targets for requests. Its state (such as the position of a rotation) is its own. A
// balancer has one instance for all models and never calls it concurrently.
// Two instances of a policy that receive the same facts in the same order make the same choices.
type Policy interface {
	// Name returns the policy's name, for New. All names except cache-aware:skylb are valid in
	// service.yaml.
	Name() string
	// Traits returns the policy's traits; they never change.
	Traits() Traits
	// Choose selects an available candidate, or Wait, or holds the request for a replica. The
	// balancer does not check whether the chosen candidate is available.
	Choose(*Facts) Choice
}

// Traits are the properties of a policy that change what the balancer does. A policy with both Peers
// and Holds decides itself whether a peer is too busy. The balancer then marks a peer as available if
// it reported recently, has a live replica of the model and has not returned a forwarded request unserved
// within core.Config.PeerBackoff.
type Traits struct {
	// Prefix: it uses Candidate.MatchBytes, SupersededBytes or CachedBytes, so the balancer must set them.
	// In a Pool they are never set.
	Prefix bool
	// Peers: it compares this balancer's replicas with the peers itself, so it must receive the
	// peers even while a replica of this balancer is available.
	Peers bool
	// Holds: it may hold a request for one replica (Choice.Hold) while requests behind it are sent. It also
	// changes the queue: of two requests with equal priority, that of the older session is first, within
	// limits (core.Config.SessionLead).
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

// canonicallyPending contains the policies that comparisons run with the push mode pending (see Candidate.Available).
var canonicallyPending = map[string]bool{"skylb": true, "skylb-ch": true, "longest-prefix": true, "cost": true}

// CanonicalPush returns the push mode, pending or blind, with which comparisons run a policy. It is that of the policy's
// paper or project, if there is one. Only for bf-io, it is blind although the paper limits the requests at each rank. For
// an unknown name, it is pending. Services do not use CanonicalPush.
func CanonicalPush(name string) string {
	if _, known := constructors[name]; known && !canonicallyPending[name] {
		return "blind"
	}
	return "pending"
}

// New returns a policy by name. The error for an unknown name lists the valid ones.
func New(name string) (Policy, error) {
	if construct, known := constructors[name]; known {
		return construct(), nil
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

// reason returns the reason of a choice: ReasonForward for a peer, replicaReason for a replica.
func reason(replicaReason string, peer bool) string {
	if peer {
		return ReasonForward
	}
	return replicaReason
}

// rotation breaks ties in turn: it selects the next candidate after the last choice for the model. With one last choice
// for all models, a model whose requests alternate with those of another would use only some of its replicas.
type rotation struct{ last map[string]chosen } // the last choice, by model

// chosen identifies a candidate that was chosen and may have been removed since.
type chosen struct {
	peer bool
	id   string
}

// isBefore reports whether c follows the chosen candidate in the order of Facts.Candidates.
func (l chosen) isBefore(c *Candidate) bool {
	if c.Peer != l.peer {
		return c.Peer
	}
	return c.ID > l.id
}

// nextTarget returns the index of an eligible candidate: the first after the last choice,
// else the first. It returns none if no candidate is eligible.
func (r *rotation) nextTarget(f *Facts, from, to int, eligible func(*Candidate) bool) int {
	next, last, cs := none, r.last[f.Model], f.Candidates
	for i := from; i < to; i++ {
		if !eligible(&cs[i]) {
			continue
		}
		if last.isBefore(&cs[i]) {
			next = i
			break
		}
		if next == none {
			next = i
		}
	}
	if next != none {
		if r.last == nil {
			r.last = map[string]chosen{}
		}
		r.last[f.Model] = chosen{cs[next].Peer, cs[next].ID}
	}
	return next
}
