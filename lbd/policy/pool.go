package policy

import "time"

// PoolPolicy is a policy that decides for many queued requests at once: for the pool, which is the head of the
// queue. The balancer may collect requests for a short time before each decision (core.Config.PoolInterval). Choose
// places the other requests: those that only some ranks (see Rank) may receive, and those that go to a peer.
type PoolPolicy interface {
	Policy
	// Assign decides for a whole pool. It returns one choice for each of pool.Waiting. Its Index is an
	// index in pool.Ranks, or Wait. No rank is chosen more often than it has free slots. The choices are
	// valid until the next call.
	Assign(pool *Pool) []Choice
}

// Pool is the complete input of a PoolPolicy. It is valid only during Assign.
type Pool struct {
	Now   time.Duration // since the balancer started
	Model string
	// Waiting is the pool, in order.
	Waiting []WaitingRequest
	// Ranks are the live ranks of the model, grouped by engine. Those that may not receive a
	// request now are included, with FreeSlots 0.
	Ranks []Rank
}

// WaitingRequest is a queued request.
type WaitingRequest struct {
	PromptTokens int
	// MaxTokens is the client's limit on the response; 0 = no limit.
	MaxTokens int
	// ExpectedTokens is the expected length of the response: the mean of the model's responses so far, or a
	// default before the first one has ended; at most MaxTokens.
	ExpectedTokens int
	// Waited is the time as in Facts.Waited.
	Waited time.Duration
	// InPool is the time since the request was first in a pool. Unlike Waited, it excludes the time
	// before that, such as the time in which too many requests were ahead in the queue.
	InPool time.Duration
}

// Rank is one data-parallel rank of an engine. An engine without data-parallel ranks counts as one rank.
type Rank struct {
	Candidate
	// Engine identifies the engine. Its ranks wait for each other at every step.
	Engine string
	// LoadTokens is the load that Assign balances. The balancer sets it to Candidate.ContextTokens.
	LoadTokens int
	// FreeSlots is the number of further requests that may be sent there now.
	FreeSlots int
	// OutstandingRequests are the requests that this balancer sent there and that have not ended.
	OutstandingRequests []OutstandingRequest
}

// OutstandingRequest is a request that was sent to a rank and has not ended. It may be running, or
// pending at the engine.
type OutstandingRequest struct {
	// Tokens is the current length of its context: prompt, and response so far.
	Tokens int
	// Remaining is the maximum number of tokens until it ends, at least 1; 0 = unknown.
	Remaining int
}
