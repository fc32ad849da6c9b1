package engine

import (
	"fmt"
	"time"
)

// Detail says which tokens an engine reports.
type Detail uint8

// The levels of detail. Times and results are the same under both.
const (
	// ReportTokens reports every token: what a server needs.
	ReportTokens Detail = iota
	// ReportChanges reports the first token of each request only, and passes
	// over the decode steps between two changes at once: what a simulation of
	// millions of requests needs.
	ReportChanges
)

// Engine is one simulated replica. It is driven from one goroutine:
//
//	e.Submit(now, request)
//	for {
//		at, ok := e.NextAt()
//		// wait, or jump, until at
//		for _, ev := range e.Advance(at) { ... }
//	}
//
// Times are durations since the engine's epoch and must not go backwards; an
// earlier time counts as the latest one told. A step takes in what was
// submitted up to the instant it begins. (Only the order can depend on whether
// NextAt was asked between two submissions at one instant: it makes the engine
// choose among those that are there, so that one of priority 0 submitted after
// it comes behind those.)
type Engine struct {
	profile Profile
	detail  Detail
	light   bool // it keeps no tokens, only their numbers

	at    time.Duration // end of the last step, or the latest time told while idle
	step  step
	steps int // decode steps done since the epoch

	cache   *cache
	private int // KV tokens outside the cache

	byID    map[uint64]*request
	waiting [2]queue   // by priority
	running []*request // in the order of admission
	partial *request   // admitted, its prompt only partly in a prefill step so far

	decoding int // of running, how many are past their prefill
	context  int // tokens in the contexts of those
	promised int // sum over running of MaxNew minus emitted

	load   Load
	events []Event
	taken  bool // Advance has handed the events out
	spare  []*request
}

// Load is what an engine knows about its load at the time it was last told.
type Load struct {
	Pending int // submitted, not running yet
	Running int // in the batch, their prompt computed or being computed

	KVActive   int // KV tokens that running requests use, shared ones once
	KVUsed     int // KVActive and what the cache remembers beside it
	KVCapacity int

	// Counters since the epoch.
	Submitted        int64
	Finished         int64
	Cancelled        int64
	Rejected         int64
	Preempted        int64
	QueriedTokens    int64 // prompt tokens looked up in the cache, once a request
	HitTokens        int64 // of those, found
	PromptTokens     int64 // prompt tokens of requests whose first token came
	GeneratedTokens  int64
	PrefilledTokens  int64 // tokens computed in prefill steps, after preemptions again
	PrefillSteps     int64
	DecodeSteps      int64
	BusyTime         time.Duration // spent in steps that have ended
	EvictedTokens    int64
	RecomputedTokens int64 // tokens that preemptions threw away
}

// New makes an idle engine whose epoch is 0. An unusable profile is an error.
func New(p Profile, d Detail) (*Engine, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &Engine{profile: p, detail: d, cache: newCache(), byID: make(map[uint64]*request)}, nil
}

// NewLight makes an engine that keeps no tokens and so no cache: requests are
// submitted with the length of their prompt, nothing is found in a cache, and no
// figures of one are kept (QueriedTokens stays 0). Times, admission and
// preemption are those of an engine whose requests share nothing, at a fraction
// of the cost: for millions of requests that are known by their lengths. It
// reports changes only. An unusable profile is an error.
func NewLight(p Profile) (*Engine, error) {
	e, err := New(p, ReportChanges)
	if err != nil {
		return nil, err
	}
	e.light = true
	return e, nil
}

// Profile is the profile the engine was made with.
func (e *Engine) Profile() Profile { return e.profile }

// Submit hands a request to the engine. One that can never run is told as
// Rejected by the next Advance; every other will finish unless cancelled.
func (e *Engine) Submit(now time.Duration, q Request) {
	e.settle(now)
	e.load.Submitted++
	prompt := len(q.Prompt)
	if e.light {
		prompt, q.Prompt, q.Output = max(0, q.PromptTokens), nil, nil
	}
	if why := e.refuse(q.ID, prompt); why != 0 {
		e.load.Rejected++
		e.emit(Event{At: e.clock(now), ID: q.ID, Kind: Rejected, Reason: why, PromptTokens: prompt})
		return
	}
	r := e.newRequest()
	r.load(&q, prompt, e.profile.KVTokens)
	e.byID[r.id] = r
	e.waiting[r.priority].pushBack(r)
	if e.head() == r {
		// Anyone behind the head stays blocked by it until a request leaves:
		// every decode step takes more memory than it takes from the reserve.
		e.interrupt(now)
		e.join(now)
	}
}

// refuse says why a request can never run, or 0.
func (e *Engine) refuse(id uint64, prompt int) Reason {
	switch {
	case prompt == 0:
		return ReasonEmpty
	case prompt+1 > e.profile.KVTokens:
		return ReasonTooLong
	case e.byID[id] != nil:
		return ReasonDuplicate
	}
	return 0
}

// Cancel takes a request out of the engine and frees its memory and its place
// in the batch at once; a step that is under way still takes its time. It
// reports whether the request was there. What the cache learned of its prompt
// stays. A token that the engine emitted before now may still be told.
func (e *Engine) Cancel(now time.Duration, id uint64) bool {
	e.settle(now)
	r := e.byID[id]
	if r == nil {
		return false
	}
	e.load.Cancelled++
	if r.running {
		e.interrupt(now)
		e.release(r)
	} else {
		wasHead := e.head() == r
		e.waiting[r.priority].remove(r)
		if wasHead {
			e.interrupt(now)
		}
	}
	e.forget(r)
	return true
}

// NextAt is when Advance next has something to say or to do: the end of the
// step under way (under ReportChanges, of the run of decode steps under way).
// It is false while the engine is idle. Submit and Cancel change it.
func (e *Engine) NextAt() (time.Duration, bool) {
	if !e.taken && len(e.events) > 0 {
		return e.events[0].At, true
	}
	if e.step.kind == stepNone && e.busy() {
		e.plan()
	}
	switch e.step.kind {
	case stepPrefill:
		return e.step.end(1), true
	case stepDecode:
		if e.detail == ReportTokens {
			return e.step.end(e.step.done + 1), true
		}
		return e.step.end(e.step.count), true
	}
	return 0, false
}

// Advance lets every step that ends at or before now happen and returns what
// happened since the last Advance, in order. The slice is valid until the next
// call of any method.
func (e *Engine) Advance(now time.Duration) []Event {
	e.settle(now)
	if e.taken {
		return nil
	}
	e.taken = true
	return e.events
}

// Load is the load after the last Submit, Cancel or Advance.
func (e *Engine) Load() Load {
	l := e.load
	l.Pending = e.waiting[0].len() + e.waiting[1].len()
	l.Running = len(e.running)
	l.KVActive = e.cache.locked + e.private
	l.KVUsed = e.cache.tokens + e.private
	l.KVCapacity = e.profile.KVTokens
	l.DecodeSteps = int64(e.steps)
	return l
}

// Generated is how many tokens a request has emitted, and whether it is in the
// engine.
func (e *Engine) Generated(id uint64) (tokens int, ok bool) {
	r := e.byID[id]
	if r == nil {
		return 0, false
	}
	return e.emitted(r), true
}

// CachedPrefix is how many tokens of a prompt the cache holds. It changes
// nothing: an oracle's question.
func (e *Engine) CachedPrefix(prompt []Token) int { return e.cache.peek(prompt) }

// String describes the engine's state in a line, for failure messages.
func (e *Engine) String() string {
	l := e.Load()
	return fmt.Sprintf("%s at %v: pending %d, running %d, KV %d active, %d used of %d",
		e.profile.Name, e.at, l.Pending, l.Running, l.KVActive, l.KVUsed, l.KVCapacity)
}

// emit appends an event, recycling the buffer once its content was handed out.
func (e *Engine) emit(ev Event) {
	if e.taken {
		e.events, e.taken = e.events[:0], false
	}
	e.events = append(e.events, ev)
}

// clock is now, or the end of the last step where now lies before it.
func (e *Engine) clock(now time.Duration) time.Duration { return max(now, e.at) }

func (e *Engine) busy() bool { return len(e.running) > 0 || e.head() != nil }

// head is the request that is admitted next.
func (e *Engine) head() *request {
	if r := e.waiting[0].front(); r != nil {
		return r
	}
	return e.waiting[1].front()
}

// emitted is how many tokens a request has emitted.
func (e *Engine) emitted(r *request) int {
	if r.decoding {
		return r.base + e.steps - r.joined
	}
	return r.base
}

func (e *Engine) newRequest() *request {
	last := len(e.spare) - 1
	if last < 0 {
		return new(request)
	}
	r := e.spare[last]
	e.spare = e.spare[:last]
	return r
}

// maxSpareRequests bounds what is kept for reuse.
const maxSpareRequests = 256

// forget drops a request that has left the queue and the batch.
func (e *Engine) forget(r *request) {
	delete(e.byID, r.id)
	r.seq, r.given = nil, nil
	if len(e.spare) < maxSpareRequests {
		e.spare = append(e.spare, r)
	}
}
