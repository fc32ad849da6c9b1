package eval

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// timing is an engine's constants in seconds, as engine.Profile names them, and
// what a first token takes beside the engine's steps.
type timing struct {
	prefillBase, prefillPerToken              float64
	decodeBase, decodePerRequest, decodePerKV float64
	overhead                                  float64
}

func (m *timing) prefill(steps, tokens float64) float64 {
	return m.prefillBase*steps + m.prefillPerToken*tokens
}

func (m *timing) decode(n, context float64) float64 {
	return m.decodeBase + m.decodePerRequest*n + m.decodePerKV*context
}

// prefillStep is one or several prefill steps in a row after which one or
// several first tokens came.
type prefillStep struct {
	end           float64 // seconds of the record
	steps, tokens float64
}

// sums are integrals over the decode steps of a replica up to a time, and over
// its prefills: differences of two of them tell of the time between.
type sums struct {
	steps, requests, context float64 // decode steps; of them, requests and context in each
	prefills, prefilled      float64 // prefill steps and their tokens
}

func (a sums) minus(b sums) sums {
	return sums{a.steps - b.steps, a.requests - b.requests, a.context - b.context, a.prefills - b.prefills, a.prefilled - b.prefilled}
}

// lane is what one replica did, laid out by a timing: when it computed prompts,
// and how many decode steps there were in the rest.
type lane struct {
	stays    []*stay // by when they were sent
	prefills []prefillStep
	at       map[*stay]*laneStay
	most     float64 // context of all that ran at once
}

// laneStay is where a stay lies in its lane.
type laneStay struct {
	first, end sums
	// step is the prefill that its first token ended; alone, that nobody else was
	// there from when it was sent until then.
	step  int
	alone bool
	// running and context were decoded with when it was sent.
	running, context float64
}

// lanes makes a lane of each replica.
func lanes(all []*stay) []*lane {
	by := map[string]*lane{}
	var out []*lane
	for _, s := range all {
		l := by[s.replica]
		if l == nil {
			l = &lane{}
			by[s.replica] = l
			out = append(out, l)
		}
		l.stays = append(l.stays, s)
	}
	for _, l := range out {
		slices.SortStableFunc(l.stays, func(a, b *stay) int { return cmp.Compare(a.sent, b.sent) })
	}
	return out
}

// lay lays the lane out. First tokens that come within together of each other
// end one prefill step; chunk is the most tokens of one.
func (l *lane) lay(m *timing, together float64, chunk int) {
	l.at = make(map[*stay]*laneStay, len(l.stays))
	for _, s := range l.stays {
		l.at[s] = &laneStay{}
	}
	l.groupPrefills(together, chunk)
	l.findAlone()
	l.walk(m)
}

// groupPrefills finds the prefill steps by the first tokens that they ended in.
func (l *lane) groupPrefills(together float64, chunk int) {
	l.prefills = l.prefills[:0]
	var begun []*stay
	for _, s := range l.stays {
		if s.first > 0 {
			begun = append(begun, s)
		}
	}
	slices.SortStableFunc(begun, func(a, b *stay) int { return cmp.Compare(a.first, b.first) })
	for _, s := range begun {
		at := s.first.Seconds()
		if n := len(l.prefills); n == 0 || at-l.prefills[n-1].end > together {
			l.prefills = append(l.prefills, prefillStep{end: at})
		}
		l.at[s].step = len(l.prefills) - 1
		l.prefills[len(l.prefills)-1].tokens += float64(s.uncached())
	}
	for i := range l.prefills {
		p := &l.prefills[i]
		p.steps = math.Ceil(p.tokens / float64(chunk))
	}
}

// findAlone marks the stays whose first token nobody else delayed.
func (l *lane) findAlone() {
	busy := time.Duration(-1) // until when somebody who came earlier is there
	for i, s := range l.stays {
		next := i+1 == len(l.stays) || l.stays[i+1].sent > s.first
		l.at[s].alone = s.first > 0 && s.sent > busy && next
		busy = max(busy, s.end)
	}
}

// laneMark is a moment at which something changes in a lane.
type laneMark struct {
	at   float64
	kind markKind
	stay *stay
	step int
}

type markKind int

// At one moment a prefill ends before its requests begin to decode, and those
// that are done leave before.
const (
	markEnd markKind = iota
	markSent
	markStall
	markPrefilled
	markFirst
)

// marks lists the moments in their order.
func (l *lane) marks(m *timing) []laneMark {
	var marks []laneMark
	before := 0.0
	for i := range l.prefills {
		p := &l.prefills[i]
		begin := max(before, p.end-m.prefill(p.steps, p.tokens))
		before = p.end
		marks = append(marks, laneMark{begin, markStall, nil, i}, laneMark{p.end, markPrefilled, nil, i})
	}
	for _, s := range l.stays {
		if s.first == 0 {
			continue
		}
		marks = append(marks, laneMark{s.sent.Seconds(), markSent, s, 0})
		// Those of one step begin together: what lies between is the wire's.
		begin := l.prefills[l.at[s].step].end
		if end := s.end.Seconds(); end > begin { // else it ended with its first token
			marks = append(marks, laneMark{begin, markFirst, s, 0}, laneMark{end, markEnd, s, 0})
		}
	}
	slices.SortStableFunc(marks, func(a, b laneMark) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind)) })
	return marks
}

// walk goes through the lane and keeps at each stay's first token and end what
// had happened by then.
func (l *lane) walk(m *timing) {
	var now sums
	var at, running, context float64
	stalled := 0
	for _, k := range l.marks(m) {
		if stalled == 0 && running > 0 {
			steps := (k.at - at) / m.decode(running, context)
			steps = (k.at - at) / m.decode(running, context+running*steps/2) // it grows meanwhile
			now.steps += steps
			now.requests += steps * running
			now.context += steps * (context + running*max(0, steps-1)/2)
			context += steps * running
		}
		at = k.at
		l.most = max(l.most, context)
		switch k.kind {
		case markStall:
			stalled++
		case markPrefilled:
			stalled--
			now.prefills += l.prefills[k.step].steps
			now.prefilled += l.prefills[k.step].tokens
		case markSent:
			l.at[k.stay].running, l.at[k.stay].context = running, context
		case markFirst:
			l.at[k.stay].first = now
			running++
			context += float64(k.stay.prompt) + 1
		case markEnd:
			s := l.at[k.stay]
			s.end = now
			running--
			context -= float64(k.stay.prompt) + 1 + now.steps - s.first.steps
		}
	}
}
