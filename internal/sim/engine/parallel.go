package engine

import (
	"fmt"
	"time"
)

// Parallel is a data-parallel engine: each rank has its own queue, batch and KV memory, and all ranks
// start and end every step together, because steps need shared resources (experts of a mixture,
// collective operations). Every step takes as long as the slowest rank needs (equation (6) of the BF-IO
// paper) and is of one kind, prefill before decode; a rank without work of that kind participates with
// a dummy batch, as in vLLM. With one rank it equals an Engine.
//
// It is driven like an Engine, by one goroutine.
type Parallel struct {
	ranks []*Engine
	at    time.Duration // end of the last step, or the latest time while idle

	// The current run of steps; a prefill run is a single step. The ranks' own steps share its ends.
	stepping bool
	start    time.Duration
	ends     []time.Duration
	done     int // finished steps of the run

	waited []time.Duration // waiting time for slower ranks, by rank
	took   time.Duration   // total time of finished steps
	rankOf map[uint64]int

	events         []Event
	eventsReturned bool
}

// NewParallel returns an idle engine with epoch 0 and that many ranks, at least 1. The profile is that
// of one rank. An invalid profile is an error.
func NewParallel(p Profile, ranks int, d ReportDetail) (*Parallel, error) {
	if ranks < 1 {
		return nil, fmt.Errorf("creating a data-parallel engine: must have at least 1 rank, got %d", ranks)
	}
	x := &Parallel{waited: make([]time.Duration, ranks), rankOf: map[uint64]int{}}
	for range ranks {
		e, err := New(p, d)
		if err != nil {
			return nil, err
		}
		x.ranks = append(x.ranks, e)
	}
	return x, nil
}

// Ranks returns the number of ranks.
func (p *Parallel) Ranks() int { return len(p.ranks) }

// Submit submits a request to a rank. A request that can never run, or has the ID of a present request,
// is reported as Rejected by the next Advance.
func (p *Parallel) Submit(now time.Duration, rank int, q Request) {
	p.processSteps(now)
	if other, dup := p.rankOf[q.ID]; dup {
		rank = other // that rank detects the duplicate
	} else {
		p.rankOf[q.ID] = rank
	}
	e := p.ranks[rank]
	before := e.step.identity()
	e.Submit(p.clock(now), q)
	p.resync(now, e.step.identity() != before)
}

// Cancel removes a request from the engine, like Engine.Cancel.
func (p *Parallel) Cancel(now time.Duration, id uint64) bool {
	p.processSteps(now)
	rank, there := p.rankOf[id]
	if !there {
		return false
	}
	delete(p.rankOf, id)
	e := p.ranks[rank]
	before := e.step.identity()
	ok := e.Cancel(p.clock(now), id)
	p.resync(now, e.step.identity() != before)
	return ok
}

// NextAt returns the time of the next event, like Engine.NextAt.
func (p *Parallel) NextAt() (time.Duration, bool) {
	if !p.eventsReturned && len(p.events) > 0 {
		return p.events[0].At, true
	}
	if !p.stepping && p.busy() {
		p.plan()
	}
	switch {
	case !p.stepping:
		return 0, false
	case p.ranks[0].detail == ReportTokens:
		return p.ends[p.done], true
	}
	return p.ends[len(p.ends)-1], true
}

// Advance processes every step that ends at or before now and returns the events since the last
// Advance, in order of time and then rank. The slice is valid until the next call of any method.
func (p *Parallel) Advance(now time.Duration) []Event {
	p.processSteps(now)
	if p.eventsReturned {
		return nil
	}
	p.eventsReturned = true
	return p.events
}

// Load returns the load of one rank.
func (p *Parallel) Load(rank int) Load { return p.ranks[rank].Load() }

// ReportCache makes every rank record the changes of its cache, like Engine.ReportCache.
func (p *Parallel) ReportCache(size int, seed uint64) {
	for rank, e := range p.ranks {
		e.ReportCache(size, seed+uint64(rank))
	}
}

// CacheChanges returns the changes of one rank since the last call, like Engine.CacheChanges.
func (p *Parallel) CacheChanges(rank int) []CacheChange { return p.ranks[rank].CacheChanges() }

// CachedPrefix returns how many tokens of a prompt a rank has cached, like Engine.CachedPrefix.
func (p *Parallel) CachedPrefix(rank int, prompt []Token) int {
	return p.ranks[rank].CachedPrefix(prompt)
}

// BarrierTime returns the total time of finished steps, and how much of it a rank waited for slower ones.
func (p *Parallel) BarrierTime(rank int) (took, waited time.Duration) { return p.took, p.waited[rank] }

func (p *Parallel) clock(now time.Duration) time.Duration { return max(now, p.at) }

func (p *Parallel) busy() bool {
	for _, e := range p.ranks {
		if e.busy() {
			return true
		}
	}
	return false
}

// processSteps processes every step that ends at or before now, and starts those that start before now.
func (p *Parallel) processSteps(now time.Duration) {
	for {
		switch {
		case p.stepping:
			if !p.advance(now) {
				return
			}
		case !p.busy():
			p.at = p.clock(now)
			for _, e := range p.ranks {
				e.at = p.at
			}
			return
		case p.at >= now:
			return
		default:
			p.plan()
		}
	}
}

// plan starts the next run on every rank: all steps until a change on any rank.
func (p *Parallel) plan() {
	p.stepping, p.start, p.done = true, p.at, 0
	p.waitFor(p.begin())
}

// begin starts a step on every idle rank and returns the number of steps in the run. Prefills come
// first: while any rank has one, all others wait.
func (p *Parallel) begin() int {
	kind := stepDecode
	for _, e := range p.ranks {
		if e.step.kind == stepNone {
			e.at = p.start
			e.planPrefill()
		}
		if len(e.step.chunks) > 0 {
			kind = stepPrefill
		}
	}
	count := 1
	if kind == stepDecode {
		count = p.beginDecode()
	}
	for _, e := range p.ranks {
		e.step.kind, e.step.count = kind, count
	}
	p.collect() // preemptions come before later events of any rank
	return count
}

// beginDecode starts a run of decode steps on the ranks with running requests and returns the number of
// steps until a change on any rank.
func (p *Parallel) beginDecode() int {
	count := 0
	for _, e := range p.ranks {
		if e.decoding == 0 {
			continue
		}
		e.planDecode()
		if count == 0 || e.step.count < count {
			count = e.step.count
		}
	}
	return count
}

// waitFor sets the ends of count steps to those of the slowest rank.
func (p *Parallel) waitFor(count int) {
	p.ends = p.ends[:0]
	end := p.start
	for k := range count {
		slowest := time.Duration(0)
		for _, e := range p.ranks {
			slowest = max(slowest, e.step.ownTime(k+1)-e.step.ownTime(k))
		}
		end += slowest
		p.ends = append(p.ends, end)
	}
	p.shareEnds()
}

// shareEnds passes the ends of the run to the ranks.
func (p *Parallel) shareEnds() {
	for _, e := range p.ranks {
		e.step.ends = p.ends
	}
}

// advance processes steps of the run that end at or before now and reports whether there were any. With
// ReportTokens it processes one step, so that the ranks report in order of time.
func (p *Parallel) advance(now time.Duration) bool {
	k := p.done
	for k < len(p.ends) && p.ends[k] <= now {
		if k++; p.ranks[0].detail == ReportTokens {
			break
		}
	}
	if k == p.done {
		return false
	}
	p.addWaits(k)
	at := p.ends[k-1]
	if p.done = k; k == len(p.ends) {
		p.stepping, p.at = false, at
	}
	for _, e := range p.ranks {
		e.processSteps(at)
	}
	p.collect()
	return true
}

// addWaits adds the waiting times until the k-th step of the run ends.
func (p *Parallel) addWaits(k int) {
	from := p.start
	if p.done > 0 {
		from = p.ends[p.done-1]
	}
	took := p.ends[k-1] - from
	p.took += took
	for g, e := range p.ranks {
		p.waited[g] += took - (e.step.ownTime(k) - e.step.ownTime(p.done))
	}
}

// identity identifies a run, to detect changes by Submit or Cancel: its kind, steps and prompt tokens.
func (s *step) identity() [3]int { return [3]int{int(s.kind), s.steps(), s.tokens} }

// resync applies a change on one rank to all: the run ends after the current step, and a step that
// starts at now is planned again.
func (p *Parallel) resync(now time.Duration, changed bool) {
	p.collect()
	if !p.stepping || !changed {
		return
	}
	remaining := 0
	for _, e := range p.ranks {
		e.interrupt(p.clock(now))
		if e.step.kind != stepNone {
			remaining = max(remaining, e.step.steps())
		}
	}
	switch {
	case remaining == 0: // all ranks are between two steps
		p.stepping, p.at = false, p.ranks[0].at
	case p.done == 0 && p.start >= now:
		p.waitFor(p.begin()) // a prefill that starts now has grown
	default:
		p.ends = p.ends[:remaining]
		p.shareEnds()
	}
}

// steps returns the number of steps in the run.
func (s *step) steps() int {
	if s.kind == stepPrefill {
		return 1
	}
	return s.count
}

// collect takes over the events of the ranks.
func (p *Parallel) collect() {
	from := -1
	for _, e := range p.ranks {
		if e.eventsReturned || len(e.events) == 0 {
			continue
		}
		if p.eventsReturned {
			p.events, p.eventsReturned = p.events[:0], false
		}
		if from < 0 {
			from = len(p.events)
		}
		p.events = append(p.events, e.events...)
		e.eventsReturned = true
	}
	if from >= 0 {
		p.forgetFinished(p.events[from:])
	}
}

// forgetFinished removes finished requests from rankOf.
func (p *Parallel) forgetFinished(events []Event) {
	for _, ev := range events {
		if ev.Kind == Finished || ev.Kind == Rejected && ev.Reason != ReasonDuplicate {
			delete(p.rankOf, ev.ID)
		}
	}
}

// String describes the state of each rank in a line, for failure messages.
func (p *Parallel) String() string {
	text := ""
	for g, e := range p.ranks {
		text += fmt.Sprintf("rank %d: %v\n", g, e)
	}
	return text
}
