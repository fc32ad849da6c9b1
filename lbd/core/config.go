package core

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// Push is the rule that decides whether a replica may be sent another request
// (SkyLB section 3.3).
type Push struct {
	Mode PushMode
	N    int // outstanding only
}

// PushMode names a push rule.
type PushMode string

// The push rules.
const (
	// PushBlind always sends.
	PushBlind PushMode = "blind"
	// PushOutstanding sends while fewer than N requests are outstanding.
	PushOutstanding PushMode = "outstanding"
	// PushPending sends while the replica's engine has nothing pending.
	PushPending PushMode = "pending"
)

// ParsePush reads a push rule as users write it: pending, outstanding:N or
// blind; empty is pending.
func ParsePush(s string) (Push, error) {
	switch s {
	case "", string(PushPending):
		return Push{Mode: PushPending}, nil
	case string(PushBlind):
		return Push{Mode: PushBlind}, nil
	}
	if rest, ok := strings.CutPrefix(s, string(PushOutstanding)+":"); ok {
		if n, err := strconv.Atoi(rest); err == nil && n >= 1 {
			return Push{Mode: PushOutstanding, N: n}, nil
		}
	}
	return Push{}, fmt.Errorf("unknown push rule %q: want pending, outstanding:N (N >= 1) or blind", s)
}

// String writes the rule as ParsePush reads it.
func (p Push) String() string {
	if p.Mode == PushOutstanding {
		return fmt.Sprintf("%s:%d", p.Mode, p.N)
	}
	return string(p.Mode)
}

// Config is what a balancer goes by until it is reconfigured. DefaultConfig gives
// every field its default.
type Config struct {
	Policy policy.Policy
	Push   Push
	// Order is the order in which waiting requests go. Targets is when those of
	// each tier are due, ModelTargets that of models with targets of their own.
	Order        Order
	Targets      Targets
	ModelTargets map[string]Targets
	// TauN and TauP are OrderDPA's: from how long after its deadline a request is
	// severely expired, and how long before it it is urgent.
	TauN, TauP time.Duration
	// Forward allows sending requests to peers.
	Forward bool
	// Tau is how many requests a peer may hold and still be offered one.
	Tau int
	// QueueLimit bounds the requests held; MaxWait how long each is held.
	QueueLimit int
	MaxWait    time.Duration
	// ProbeInterval is the time between two reports of one target. After
	// StaleIntervals without one its figures no longer count, after
	// LostIntervals it is unavailable.
	ProbeInterval  time.Duration
	StaleIntervals int
	LostIntervals  int
	// UnconfirmedLimit bounds, under PushPending, what is sent to a replica
	// between two reports without a first token having come back.
	UnconfirmedLimit int
	// OutstandingLimit bounds what is outstanding, under PushPending, at a
	// replica whose pending count is unknown or stale.
	OutstandingLimit int
	// SessionLead bounds how far a request of a session that began earlier goes
	// before those that arrived earlier, where the policy holds.
	SessionLead time.Duration
	// PoolLimit bounds how many requests at the front of a queue are weighed at once.
	PoolLimit int
	// BatchInterval is the least time between two decisions for a whole pool, where
	// the policy decides for pools and there is little room.
	BatchInterval time.Duration
	// Deferred says when deferred requests join the others; while it holds any apart,
	// MaxWait does not bound them, but their target does.
	Deferred DeferredRule
	// MaxTries bounds how often one request is sent in all.
	MaxTries int
	// RetryWait is how long a request waits that everything which answers has failed,
	// before it is sent to any of it again; after each such round half as long again,
	// RetryWaitMax at most. 0 = not at all.
	RetryWait, RetryWaitMax time.Duration
	// RetryShare and RetryBurst bound how many requests are tried again: each
	// arrival allows RetryShare of a retry, up to RetryBurst in stock. RetryBurst 0 =
	// no bound.
	RetryShare float64
	RetryBurst int
	// A replica that fails EjectAfter requests in a row is left out for EjectTime,
	// each time in a row twice as long, EjectMax at most, unless more than
	// EjectShare (0..1) of its model's replicas would be. EjectAfter 0 = never.
	EjectAfter          int
	EjectTime, EjectMax time.Duration
	EjectShare          float64
	// PeerPause is how long a peer that bounced a request is left out.
	PeerPause time.Duration
	// A request is stopped after KillAfter replicas died while they served it; 0 = never.
	// A replica did not die if it still answers its probes KillWait after a failure.
	// Suspected and stopped requests are remembered for KillMemory, at most KillLimit of
	// them.
	KillAfter  int
	KillWait   time.Duration
	KillMemory time.Duration
	KillLimit  int
	// TreeBytes bounds the memory of each of the two prefix trees; TreeOrder says
	// what goes first when they are full.
	TreeBytes int
	TreeOrder prefix.Order
	// ShareBytes bounds the memory of what is kept for the other balancers of the
	// region: as much again of what they told. 0 = nothing is shared.
	ShareBytes int
}

// DefaultConfig is the one table of the core's defaults.
func DefaultConfig(p policy.Policy) Config {
	return Config{
		Policy:  p,
		Push:    Push{Mode: PushPending}, // SkyLB 5.2: 1.27x the throughput of blind pushing near saturation
		Order:   OrderFCFS,               // what clients expect
		Targets: DefaultTargets(),
		TauN:    5 * time.Second, // a client that missed its target by five of them is still there, by more it is leaving
		TauP:    time.Second,     // the whole target of IW-F, so that such a request is urgent from its arrival on
		Forward: true,
		Tau:     10, // SkyLB's buffer for newly arriving requests

		QueueLimit: 4096,             // about 250 MB of 64 KB bodies; beyond that waiting helps nobody
		MaxWait:    60 * time.Second, // the target of the slower interactive tier

		ProbeInterval:  100 * time.Millisecond,
		StaleIntervals: 3,  // two lost probes are noise, three are not
		LostIntervals:  10, // a second of silence: another replica serves sooner

		UnconfirmedLimit: 4,  // a replica prefills some prompts in one step, but a burst must not pile up unseen
		OutstandingLimit: 24, // what an L4 runs at once of chat traffic, where an engine tells nothing
		SessionLead:      120 * time.Second,
		PoolLimit:        128,
		BatchInterval:    20 * time.Millisecond, // a step or two, whose ends come together: a quarter less imbalance than at once
		Deferred:         DefaultDeferred(),
		MaxTries:         5,
		RetryWait:        50 * time.Millisecond, // SGLang's: a step or two of an engine
		RetryWaitMax:     30 * time.Second,      // SGLang's: half of what a request may wait
		RetryShare:       0.2,                   // what outages of a fleet may add to its load
		RetryBurst:       512,                   // twice what one engine runs at once: its death costs nobody an answer
		EjectAfter:       5,
		EjectTime:        5 * time.Second, // an engine that is out of memory or restarting is back sooner than that, or not soon
		EjectMax:         time.Minute,
		EjectShare:       0.5,
		PeerPause:        time.Second,
		KillAfter:        2,                      // one death may be chance, and each try may cost an engine
		KillWait:         500 * time.Millisecond, // five probes: a process that ends has closed its port by the first
		KillMemory:       10 * time.Minute,       // longer than clients repeat a request by themselves
		KillLimit:        4096,                   // 16 replicas with 256 requests each die at once; 0.5 MB
		TreeBytes:        64 << 20,               // 120,000 prompts of 4 KB
		TreeOrder:        prefix.LeastRecent,     // what engines' own caches do
		ShareBytes:       8 << 20,                // 8 bytes for 64 of text: the caches of 32 engines with 500,000 tokens each
	}
}
