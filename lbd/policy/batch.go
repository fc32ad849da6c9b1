package policy

import "time"

// Batcher is a policy that decides for many waiting requests at once. The
// balancer gathers them for a moment and hands it the front of the queue.
type Batcher interface {
	Policy
	// Assign decides for a whole pool: one choice for each of pool.Waiting, whose
	// Index is into pool.Ranks, or Wait. No rank is chosen more often than it has
	// free slots. The choices are valid until the next call.
	Assign(pool *Pool) []Choice
}

// Pool is all that a Batcher may look at. It is valid during Assign only.
type Pool struct {
	Now   time.Duration // since the balancer's epoch
	Model string
	// Waiting is the front of the queue, in the order in which it goes.
	Waiting []Waiting
	// Ranks are the replicas that may be sent requests, those of one engine side
	// by side.
	Ranks []Rank
}

// Waiting is a request that waits.
type Waiting struct {
	PromptTokens int
	// MaxTokens bounds its answer; 0 = the client set no bound.
	MaxTokens int
	// ExpectedTokens is how long its answer is thought to be: the mean of its
	// model's answers so far, at most MaxTokens.
	ExpectedTokens int
	// Waited is its time in the queue, Offered the part of it since it first was
	// in a pool. A long queue makes everybody wait; who was offered long ago was
	// passed over.
	Waited, Offered time.Duration
}

// Rank is a replica, or one data-parallel rank of one.
type Rank struct {
	Candidate
	// Engine is shared by the ranks that wait for each other at every step. A
	// replica without ranks is an engine of its own.
	Engine string
	// Load is how many tokens of context the requests sent there have: their
	// prompts, and their answers so far.
	Load int
	// Free is how many more requests may be sent there now.
	Free int
	// Running are the requests sent there that have not ended.
	Running []Running
}

// Running is a request that was sent to a rank and has not ended.
type Running struct {
	// Tokens is its context now, prompt and answer so far.
	Tokens int
	// Left is after how many more tokens it ends at the latest, at least 1; 0 = no
	// bound is known.
	Left int
}
