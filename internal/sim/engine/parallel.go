package engine

import (
	"fmt"
	"time"
)

// Parallel is a data-parallel engine: ranks that have each a queue, a batch and
// a KV memory of their own, and that begin and end every step together, because
// they share what a step needs (the experts of a mixture, collective operations).
// Every step takes as long as the slowest rank needs (equation (6) of the BF-IO
// paper) and is of one kind, prefill before decode; a rank without work of that
// kind takes part with a dummy batch, as in vLLM. With one rank it is an Engine.
//
// It is driven as an Engine is, from one goroutine.
type Parallel struct {
	ranks []*Engine
	at    time.Duration // end of the last step, or the latest time told while idle

	// The run of steps under way: of prefills, a single step.
	// Its ends are shared with the ranks' own steps.
	stepping bool
	start    time.Duration
	ends     []time.Duration
	done     int // steps of the run that have ended

	waited []time.Duration // by rank, for slower ones
	took   time.Duration   // all steps that have ended
	rankOf map[uint64]int

	events []Event
	taken  bool
}

// NewParallel makes an idle engine of that many ranks, at least 1, whose epoch
// is 0. The profile is that of one rank. An unusable profile is an error.
func NewParallel(p Profile, ranks int, d Detail) (*Parallel, error) {
	if ranks < 1 {
		return nil, fmt.Errorf("making a data-parallel engine: must have at least 1 rank, got %d", ranks)
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

// Ranks is how many ranks there are.
func (p *Parallel) Ranks() int { return len(p.ranks) }

// Submit hands a request to a rank. One that can never run, or whose ID is in
// the engine already, is told as Rejected by the next Advance.
func (p *Parallel) Submit(now time.Duration, rank int, q Request) {
	p.settle(now)
	if other, dup := p.rankOf[q.ID]; dup {
		rank = other // which finds the duplicate
	} else {
		p.rankOf[q.ID] = rank
	}
	e := p.ranks[rank]
	before := e.step.mark()
	e.Submit(p.clock(now), q)
	p.resync(now, e.step.mark() != before)
}

// Cancel takes a request out of the engine, as Engine.Cancel does.
func (p *Parallel) Cancel(now time.Duration, id uint64) bool {
	p.settle(now)
	rank, there := p.rankOf[id]
	if !there {
		return false
	}
	delete(p.rankOf, id)
	e := p.ranks[rank]
	before := e.step.mark()
	ok := e.Cancel(p.clock(now), id)
	p.resync(now, e.step.mark() != before)
	return ok
}

// NextAt is when Advance next has something to say or to do, as Engine.NextAt.
func (p *Parallel) NextAt() (time.Duration, bool) {
	if !p.taken && len(p.events) > 0 {
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

// Advance lets every step that ends at or before now happen and returns what
// happened since the last Advance, in order, of equal times by rank. The slice
// is valid until the next call of any method.
func (p *Parallel) Advance(now time.Duration) []Event {
	p.settle(now)
	if p.taken {
		return nil
	}
	p.taken = true
	return p.events
}

// Load is the load of one rank.
func (p *Parallel) Load(rank int) Load { return p.ranks[rank].Load() }

// Barrier is how long the steps that have ended took in all, and how much of
// that a rank waited for slower ones.
func (p *Parallel) Barrier(rank int) (took, waited time.Duration) { return p.took, p.waited[rank] }

func (p *Parallel) clock(now time.Duration) time.Duration { return max(now, p.at) }

func (p *Parallel) busy() bool {
	for _, e := range p.ranks {
		if e.busy() {
			return true
		}
	}
	return false
}

// settle lets every step happen that ends at or before now, and begins those
// that lie partly before now, but none that would begin at now.
func (p *Parallel) settle(now time.Duration) {
	for {
		switch {
		case p.stepping:
			if !p.pass(now) {
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

// plan begins the next run on every rank: as many steps as change nothing on
// any of them.
func (p *Parallel) plan() {
	p.stepping, p.start, p.done = true, p.at, 0
	p.waitFor(p.begin())
}

// begin begins a step on every rank that is in none and returns how many steps
// the run has. Prefills go first: while any rank has one, all others wait.
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
	p.collect() // what beginning preempted comes before what any rank does next
	return count
}

// beginDecode begins a run of decode steps on the ranks that have some and
// returns how many of them change nothing on any.
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

// waitFor makes every rank wait for the slowest at each of count steps.
func (p *Parallel) waitFor(count int) {
	p.ends = p.ends[:0]
	end := p.start
	for k := range count {
		slowest := time.Duration(0)
		for _, e := range p.ranks {
			slowest = max(slowest, e.step.own(k+1)-e.step.own(k))
		}
		end += slowest
		p.ends = append(p.ends, end)
	}
	p.share()
}

// share hands the ends of the run to the ranks.
func (p *Parallel) share() {
	for _, e := range p.ranks {
		e.step.ends = p.ends
	}
}

// pass lets steps of the run happen that end at or before now and says whether
// any did. Where every token is told it is one step, so that the ranks tell
// theirs in the order of time.
func (p *Parallel) pass(now time.Duration) bool {
	k := p.done
	for k < len(p.ends) && p.ends[k] <= now {
		if k++; p.ranks[0].detail == ReportTokens {
			break
		}
	}
	if k == p.done {
		return false
	}
	p.account(k)
	at := p.ends[k-1]
	if p.done = k; k == len(p.ends) {
		p.stepping, p.at = false, at
	}
	for _, e := range p.ranks {
		e.settle(at)
	}
	p.collect()
	return true
}

// account counts what the ranks waited until the k-th step of the run ends.
func (p *Parallel) account(k int) {
	from := p.start
	if p.done > 0 {
		from = p.ends[p.done-1]
	}
	took := p.ends[k-1] - from
	p.took += took
	for g, e := range p.ranks {
		p.waited[g] += took - (e.step.own(k) - e.step.own(p.done))
	}
}

// mark is what tells whether somebody who came or left changed a run: its kind,
// its steps and its prompt tokens.
func (s *step) mark() [3]int { return [3]int{int(s.kind), s.steps(), s.tokens} }

// resync carries over to all ranks what a request that came or left changed on
// one: the run ends after the step under way, and a step that would begin only
// now begins again with what is there now.
func (p *Parallel) resync(now time.Duration, changed bool) {
	p.collect()
	if !p.stepping || !changed {
		return
	}
	left := 0
	for _, e := range p.ranks {
		e.interrupt(p.clock(now))
		if e.step.kind != stepNone {
			left = max(left, e.step.steps())
		}
	}
	switch {
	case left == 0: // all of them are between two steps
		p.stepping, p.at = false, p.ranks[0].at
	case p.done == 0 && p.start >= now:
		p.waitFor(p.begin()) // a prefill has grown that begins just now
	default:
		p.ends = p.ends[:left]
		p.share()
	}
}

// steps is how many steps the run has.
func (s *step) steps() int {
	if s.kind == stepPrefill {
		return 1
	}
	return s.count
}

// collect takes over what the ranks have to tell.
func (p *Parallel) collect() {
	from := -1
	for _, e := range p.ranks {
		if e.taken || len(e.events) == 0 {
			continue
		}
		if p.taken {
			p.events, p.taken = p.events[:0], false
		}
		if from < 0 {
			from = len(p.events)
		}
		p.events = append(p.events, e.events...)
		e.taken = true
	}
	if from >= 0 {
		p.note(p.events[from:])
	}
}

// note forgets where the requests are that ended.
func (p *Parallel) note(events []Event) {
	for _, ev := range events {
		if ev.Kind == Finished || ev.Kind == Rejected && ev.Reason != ReasonDuplicate {
			delete(p.rankOf, ev.ID)
		}
	}
}

// String describes the ranks' states, a line each, for failure messages.
func (p *Parallel) String() string {
	text := ""
	for g, e := range p.ranks {
		text += fmt.Sprintf("rank %d: %v\n", g, e)
	}
	return text
}
