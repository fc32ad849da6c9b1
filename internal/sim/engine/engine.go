package engine

import (
	"fmt"
	"time"
)

// ReportDetail selects the tokens that an engine reports.
type ReportDetail uint8

// The levels of detail. Times and results do not depend on them.
const (
	// ReportTokens reports every token, for servers.
	ReportTokens ReportDetail = iota
	// ReportChanges reports only the first token of each request, and processes the decode steps between
	// two changes at once, for simulations of millions of requests.
	ReportChanges
)

// Engine is one simulated replica. It is driven by one goroutine:
//
//	e.Submit(now, request)
//	for {
//		at, ok := e.NextAt()
//		// wait, or jump, until at
//		for _, ev := range e.Advance(at) { ... }
//	}
//
// Times are durations since the engine's epoch and must not decrease; an earlier time counts as the
// latest one. A step includes the requests submitted up to its start. (Calling NextAt between two
// submissions at the same time can only affect their order: it makes the engine choose among the
// present requests, so that a later one with priority 0 comes after those.)
type Engine struct {
	profile Profile
	detail  ReportDetail
	light   bool // it stores only the number of tokens

	at    time.Duration // end of the last step, or the latest time while idle
	step  step
	steps int // decode steps since the epoch

	cache   *cache
	private int // KV tokens outside the cache

	byID    map[uint64]*request
	waiting [2]queue   // by priority
	running []*request // in order of admission
	partial *request   // admitted, with a prompt only partly in prefill steps so far

	decoding     int // running requests past their prefill
	context      int // context tokens of those
	maxRemaining int // sum over running of MaxNew minus emitted

	load           Load
	events         []Event
	eventsReturned bool // Advance has returned the events
	spare          []*request
}

// Load is an engine's load after the last call of Submit, Cancel or Advance.
type Load struct {
	Pending int // submitted, not yet running
	Running int // in the batch, with the prompt computed or being computed

	KVActive   int // KV tokens used by running requests, shared ones counted once
	KVUsed     int // KVActive plus unused cached tokens
	KVCapacity int

	// Counters since the epoch.
	Submitted        int64
	Finished         int64
	Cancelled        int64
	Rejected         int64
	Preempted        int64
	QueriedTokens    int64 // prompt tokens looked up in the cache, once per request
	HitTokens        int64 // those found
	PromptTokens     int64 // prompt tokens of requests with a first token
	GeneratedTokens  int64
	PrefilledTokens  int64 // tokens computed in prefill steps, including recomputation after preemptions
	PrefillSteps     int64
	DecodeSteps      int64
	BusyTime         time.Duration // in finished steps
	EvictedTokens    int64
	RecomputedTokens int64 // tokens discarded by preemptions
}

// New returns an idle engine with epoch 0, or an error for an invalid profile.
func New(p Profile, d ReportDetail) (*Engine, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &Engine{profile: p, detail: d, cache: newCache(), byID: make(map[uint64]*request)}, nil
}

// NewLight returns an engine that stores no tokens and so has no cache: requests have only the length
// of their prompt, nothing is cached, and cache counters stay 0. Times, admission and preemption are
// those of an engine whose requests share nothing, at a fraction of the cost: for millions of requests
// known by their lengths. It reports changes only. An invalid profile is an error.
func NewLight(p Profile) (*Engine, error) {
	e, err := New(p, ReportChanges)
	if err != nil {
		return nil, err
	}
	e.light = true
	return e, nil
}

// Profile returns the engine's profile.
func (e *Engine) Profile() Profile { return e.profile }

// Submit submits a request to the engine. A request that can never run is reported as Rejected by the
// next Advance; every other finishes unless cancelled.
func (e *Engine) Submit(now time.Duration, q Request) {
	e.processSteps(now)
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
	r.reset(&q, prompt, e.profile.KVTokens)
	e.byID[r.id] = r
	e.waiting[r.priority].pushBack(r)
	if e.head() == r {
		// Requests behind the head stay blocked until a request leaves: every decode step uses more
		// memory than it releases from the reserve.
		e.interrupt(now)
		e.admitNext(now)
	}
}

// refuse returns why a request can never run, or 0.
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

// Cancel removes a request from the engine and frees its memory and batch slot at once; a step in
// progress still takes its full time. It reports whether the request was present. The cached part of
// its prompt stays cached. A token emitted before now may still be reported.
func (e *Engine) Cancel(now time.Duration, id uint64) bool {
	e.processSteps(now)
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
		e.waiting[r.priority].removeRequest(r)
		if wasHead {
			e.interrupt(now)
		}
	}
	e.forget(r)
	return true
}

// NextAt returns the time of the next event for Advance: the end of the current step (with
// ReportChanges, of the current run of decode steps). It returns false while the engine is idle. Submit
// and Cancel change it.
func (e *Engine) NextAt() (time.Duration, bool) {
	if !e.eventsReturned && len(e.events) > 0 {
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

// Advance processes every step that ends at or before now and returns the events since the last
// Advance, in order. The slice is valid until the next call of any method.
func (e *Engine) Advance(now time.Duration) []Event {
	e.processSteps(now)
	if e.eventsReturned {
		return nil
	}
	e.eventsReturned = true
	return e.events
}

// Load returns the load after the last Submit, Cancel or Advance.
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

// Generated returns how many tokens a request has emitted, and whether it is in the engine.
func (e *Engine) Generated(id uint64) (tokens int, ok bool) {
	r := e.byID[id]
	if r == nil {
		return 0, false
	}
	return e.emitted(r), true
}

// CachedPrefix returns how many tokens of a prompt are cached. It changes nothing; the oracle uses it.
func (e *Engine) CachedPrefix(prompt []Token) int { return e.cache.peek(prompt) }

// String describes the engine's state in one line, for failure messages.
func (e *Engine) String() string {
	l := e.Load()
	return fmt.Sprintf("%s at %v: pending %d, running %d, KV %d active, %d used of %d",
		e.profile.Name, e.at, l.Pending, l.Running, l.KVActive, l.KVUsed, l.KVCapacity)
}

// emit appends an event, and reuses the buffer once its contents were returned.
func (e *Engine) emit(ev Event) {
	if e.eventsReturned {
		e.events, e.eventsReturned = e.events[:0], false
	}
	e.events = append(e.events, ev)
}

// clock returns now, or the end of the last step if that is later.
func (e *Engine) clock(now time.Duration) time.Duration { return max(now, e.at) }

func (e *Engine) busy() bool { return len(e.running) > 0 || e.head() != nil }

// head returns the next request to be admitted.
func (e *Engine) head() *request {
	if r := e.waiting[0].front(); r != nil {
		return r
	}
	return e.waiting[1].front()
}

// emitted returns how many tokens a request has emitted.
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

// maxSpareRequests limits the requests kept for reuse.
const maxSpareRequests = 256

// forget removes a request that has left the queue and the batch.
func (e *Engine) forget(r *request) {
	delete(e.byID, r.id)
	r.seq, r.presetOutput = nil, nil
	if len(e.spare) < maxSpareRequests {
		e.spare = append(e.spare, r)
	}
}
