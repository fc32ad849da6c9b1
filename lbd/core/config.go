package core

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// PushMode decides whether another request may be sent to a replica (SkyLB section 3.3).
type PushMode struct {
	Kind PushKind
	N    int // for PushOutstanding only
}

// PushKind is the kind of a push mode.
type PushKind string

// The kinds of push modes.
const (
	// PushBlind always sends.
	PushBlind PushKind = "blind"
	// PushOutstanding sends while fewer than N requests are outstanding.
	PushOutstanding PushKind = "outstanding"
	// PushPending sends while the replica's engine has no pending requests.
	PushPending PushKind = "pending"
)

// ParsePush parses a push mode in the user's notation: pending, outstanding:N or blind; empty is
// pending.
func ParsePush(s string) (PushMode, error) {
	switch s {
	case "", string(PushPending):
		return PushMode{Kind: PushPending}, nil
	case string(PushBlind):
		return PushMode{Kind: PushBlind}, nil
	}
	if rest, ok := strings.CutPrefix(s, string(PushOutstanding)+":"); ok {
		if n, err := strconv.Atoi(rest); err == nil && n >= 1 {
			return PushMode{Kind: PushOutstanding, N: n}, nil
		}
	}
	return PushMode{}, fmt.Errorf("unknown push mode %q: must be pending, outstanding:N (N >= 1) or blind", s)
}

// String returns the mode in the notation of ParsePush.
func (p PushMode) String() string {
	if p.Kind == PushOutstanding {
		return fmt.Sprintf("%s:%d", p.Kind, p.N)
	}
	return string(p.Kind)
}

// Config is the configuration of a balancer until the next Reconfigure. DefaultConfig returns the
// default of every field.
type Config struct {
	Policy policy.Policy
	Push   PushMode
	// Order is the order of waiting requests. Deadlines contains the deadline of each tier,
	// ModelDeadlines those of models with their own.
	Order          QueueOrder
	Deadlines      TierDeadlines
	ModelDeadlines map[string]TierDeadlines
	// SevereAfter and UrgentBefore belong to OrderDPA: a request is severely expired once SevereAfter has passed since
	// its deadline, and urgent from UrgentBefore before its deadline.
	SevereAfter, UrgentBefore time.Duration
	// Forward allows sending requests to peers.
	Forward bool
	// A peer with more than PeerQueueLimit queued requests receives no further request. The limit does
	// not apply to a policy with both Traits.Peers and Traits.Holds (policy.Traits).
	PeerQueueLimit int
	// QueueLimit is the maximum number of queued requests; MaxWait is the maximum time of a request
	// in the queue.
	QueueLimit int
	MaxWait    time.Duration
	// ScaleToZero contains the models that get a replica when a request arrives and there is none.
	// MaxColdWait is the maximum time of a request in the queue until that replica is ready; then
	// MaxWait begins. A request with its own Request.MaxWait waits for at most that time in total.
	ScaleToZero map[string]bool
	MaxColdWait time.Duration
	// ProbeInterval is the time between two reports of one target. After StaleIntervals without new
	// figures, the push mode ignores a replica's pending count, and a peer receives no requests. Policies
	// still receive the last figures, with their age. After LostIntervals without new figures they
	// are unknown. After LostIntervals without any report the target is not live.
	ProbeInterval  time.Duration
	StaleIntervals int
	LostIntervals  int
	// UnconfirmedLimit bounds, under PushPending, the unconfirmed requests at a replica
	// (policy.Candidate.Unconfirmed). A replica whose engine has shown that it starts more at once, or that
	// runs many requests with free memory, may have more (starts.go).
	UnconfirmedLimit int
	// OutstandingLimit bounds, under PushPending, the outstanding requests at a replica whose
	// pending count is unknown or stale, until core/concurrency has learned the engine's own limit. It does not
	// apply to an engine that reports its number of slots.
	OutstandingLimit int
	// SessionLead is the maximum lead of a request of an older session, for a policy that holds requests: it overtakes
	// only requests that arrived at most this much earlier.
	SessionLead time.Duration
	// PoolLimit is the maximum size of a pool: the requests at the head of a queue that are considered
	// together. With a policy that decides for one request at a time, requests behind these are not tried either.
	PoolLimit int
	// PoolInterval is the minimum time between two decisions for a whole pool, for a policy that
	// decides for pools. It applies only to a model whose replicas share engines (ReplicaInfo.Engine),
	// and not while there is much free capacity.
	PoolInterval time.Duration
	// Deferred decides when deferred requests join the others. If it can park requests, deferred
	// requests may wait until their deadline instead of MaxWait.
	Deferred DeferredRule
	// MaxAttempts is the maximum number of times that one request is sent.
	MaxAttempts int
	// RetryBackoff is the backoff of a request after it has failed at every live target. It grows by half
	// after each such round, up to MaxRetryBackoff. 0 = no backoff.
	RetryBackoff, MaxRetryBackoff time.Duration
	// RetryShare and RetryBurst are the retry budget: each arrival adds RetryShare of a retry, up to
	// RetryBurst. RetryBurst 0 = no bound.
	RetryShare float64
	RetryBurst int
	// A replica that fails EjectAfter consecutive requests is ejected for EjectTime. Each
	// consecutive ejection lasts twice as long, up to MaxEjectTime. At most EjectShare (0..1) of a
	// model's replicas are ejected at once. EjectAfter 0 = never.
	EjectAfter              int
	EjectTime, MaxEjectTime time.Duration
	EjectShare              float64
	// PeerBackoff is the time for which no requests are sent to a peer that bounced one.
	PeerBackoff time.Duration
	// A request is stopped after StopAfterDeaths replicas died while they served it; 0 = never. A replica
	// that still responds to probes KillProbeTime after a failure did not die. Suspected and stopped
	// requests are remembered for KillTTL, at most MaxKillSuspects of them.
	StopAfterDeaths int
	KillProbeTime   time.Duration
	KillTTL         time.Duration
	MaxKillSuspects int
	// TreeBytes bounds the memory of each of the two prefix trees, of the replicas and of the peers; TreeOrder is the eviction order
	// when they are full.
	TreeBytes int
	TreeOrder prefix.Order
	// ShareBytes bounds the memory of cache updates kept for other balancers, and separately of those
	// received from balancers of this region. 0 = nothing is shared.
	ShareBytes int
}

// DefaultConfig returns the core's defaults. They are defined only here.
func DefaultConfig(p policy.Policy) Config {
	return Config{
		Policy:         p,
		Push:           PushMode{Kind: PushPending}, // SkyLB 5.2: 1.27x the throughput of blind pushing near saturation
		Order:          OrderFCFS,                   // the order that clients expect
		Deadlines:      DefaultDeadlines(),
		SevereAfter:    5 * time.Second, // 5 s after the deadline, the client is usually still connected; later it is likely to disconnect
		UrgentBefore:   time.Second,     // the whole time to the deadline of a request of tier fast (IW-F), so that it is urgent on arrival
		Forward:        true,
		PeerQueueLimit: 10, // SkyLB's buffer for newly arriving requests

		QueueLimit: 4096,             // about 250 MB of 64 KB bodies; in a longer queue, requests would miss their deadlines
		MaxWait:    60 * time.Second, // the deadline of the slower interactive tier

		MaxColdWait: 15 * time.Minute, // a VM boots, pulls an image and loads the weights of a large model

		ProbeInterval:  100 * time.Millisecond,
		StaleIntervals: 3,  // two lost probes are noise, three are not
		LostIntervals:  10, // after one second without a report, another replica will probably respond sooner

		UnconfirmedLimit: 4,  // a replica prefills several prompts in one step, but a burst must not accumulate unseen
		OutstandingLimit: 24, // concurrent chat requests of an L4, for an engine that reports no pending count
		SessionLead:      120 * time.Second,
		PoolLimit:        128,
		PoolInterval:     20 * time.Millisecond, // requests that end at the same step free their slots together: on a simulated engine of 16 ranks, 25 % less imbalance than deciding immediately
		Deferred:         DefaultDeferred(),
		MaxAttempts:      5,
		RetryBackoff:     50 * time.Millisecond, // SGLang's: one or two steps of an engine
		MaxRetryBackoff:  30 * time.Second,      // SGLang's: half of the maximum wait
		RetryShare:       0.2,                   // the load that an outage may add
		RetryBurst:       512,                   // twice the concurrent requests of one engine: when it dies, all of them can be retried
		EjectAfter:       5,
		EjectTime:        5 * time.Second, // an engine that is out of memory or restarting recovers within this time, or takes much longer
		MaxEjectTime:     time.Minute,
		EjectShare:       0.5,
		PeerBackoff:      time.Second,
		StopAfterDeaths:  2,                      // one death may be a coincidence, and each further attempt may kill an engine
		KillProbeTime:    500 * time.Millisecond, // five probes: a terminating process has closed its port before the first of them
		KillTTL:          10 * time.Minute,       // longer than clients repeat a request on their own
		MaxKillSuspects:  4096,                   // 16 replicas that die at once, with 256 requests each; 0.5 MB
		TreeBytes:        64 << 20,               // 77,000 prompts of 4 KB without common prefixes
		TreeOrder:        prefix.LeastRecent,     // like the engines' own caches
		ShareBytes:       8 << 20,                // 8 bytes per 64 of text: the caches of 32 engines with 500,000 tokens each
	}
}

// ForwardsToCaches reports whether the policy compares the caches of peers in other regions with those of replicas. Then
// balancers share between regions which prompts their replicas have.
func (c *Config) ForwardsToCaches() bool {
	t := c.Policy.Traits()
	return c.Forward && t.Holds && t.Peers
}
