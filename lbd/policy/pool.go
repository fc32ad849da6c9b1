package policy

import "time"

// PoolPolicy is a policy that decides for many waiting requests at once. The balancer passes a pool from
// the head of the queue. For ranks that share an engine, it collects requests for a short time before
// each decision (core.Config.PoolInterval). It calls Choose for each request that failed before, is pinned to a
// target or is suspected of killing replicas, and for the head of the queue while only peers are available.
type PoolPolicy interface {
	Policy
	// Assign decides for a whole pool. It returns one choice for each of pool.Waiting, with an Index
	// in pool.Ranks, or Wait. No rank is chosen more often than it has free slots. The choices are
	// valid until the next call.
	Assign(pool *Pool) []Choice
}

// Pool is the complete input of a PoolPolicy. It is valid only during Assign.
type Pool struct {
	Now   time.Duration // since the balancer's epoch
	Model string
	// Waiting is the head of the queue, in order, without the requests that Choose places one by one.
	Waiting []Waiting
	// Ranks are the live replicas of the model, grouped by engine. Those that may not receive a
	// request now are included, with Free 0.
	Ranks []Rank
}

// Waiting is a waiting request.
type Waiting struct {
	PromptTokens int
	// MaxTokens is the client's bound on its answer; 0 = no bound.
	MaxTokens int
	// ExpectedTokens is the expected length of its answer: the mean of its model's answers so far,
	// at most MaxTokens; 0 = unknown.
	ExpectedTokens int
	// Waited is that of Facts, InPool the time since it was first in a pool. In a long queue
	// all requests wait; a request with a long InPool was passed over.
	Waited, InPool time.Duration
}

// Rank is a replica, or one data-parallel rank of a replica.
type Rank struct {
	Candidate
	// Engine is shared by the ranks that wait for each other at every step. A replica without ranks
	// is an engine of its own.
	Engine string
	// Load is the load that Assign balances, in tokens: the same as Candidate.Context.
	Load int
	// Free is the number of further requests that may be sent there now.
	Free int
	// Running are the outstanding requests there: sent by this balancer and not ended. It hides
	// Candidate.Running, the engine's count of its running batch.
	Running []Running
}

// Running is an outstanding request: it was sent to a rank and has not ended. Unlike in
// Candidate.Running, it may still be pending at the engine.
type Running struct {
	// Tokens is its context now, prompt and answer so far.
	Tokens int
	// Remaining is the maximum number of tokens until it ends, at least 1; 0 = no known bound.
	Remaining int
}
