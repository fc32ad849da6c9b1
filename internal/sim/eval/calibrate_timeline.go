package eval

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// timing holds an engine's constants in seconds, named as in engine.Profile, and the overhead of a
// first token outside the engine's steps.
type timing struct {
	prefillBase, prefillPerToken              float64
	decodeBase, decodePerRequest, decodePerKV float64
	overhead                                  float64
	mixed                                     bool // prefill steps also decode: engine.Profile.MixedSteps
}

func (m *timing) prefill(steps, tokens float64) float64 {
	return m.prefillBase*steps + m.prefillPerToken*tokens
}

func (m *timing) decode(n, context float64) float64 {
	return m.decodeBase + m.decodePerRequest*n + m.decodePerKV*context
}

// prefillStep is one or more consecutive prefill steps that end with one or more first tokens.
type prefillStep struct {
	end           float64 // seconds of the record
	steps, tokens float64
	// running and context are the requests that were decoding, and their context, in the timeline that was
	// computed last.
	running, context float64
}

// stepTime returns the time of a prefill step, and of the tokens that it generates beside if steps are mixed.
func (m *timing) stepTime(p *prefillStep) float64 {
	t := m.prefill(p.steps, p.tokens)
	if m.mixed {
		t += p.steps * (m.decode(p.running, p.context) - m.decodeBase)
	}
	return t
}

// sums are integrals over the decode and prefill steps of a replica up to a time. The difference of two
// sums describes the time between them.
type sums struct {
	steps, requests, context float64 // decode steps; requests and context summed over them
	prefills, prefilled      float64 // prefill steps and their tokens
}

func (a sums) minus(b sums) sums {
	return sums{a.steps - b.steps, a.requests - b.requests, a.context - b.context, a.prefills - b.prefills, a.prefilled - b.prefilled}
}

// timeline is the timeline of one replica under a timing: when it computed prompts, and how many decode
// steps it did in between.
type timeline struct {
	attempts   []*attempt // ordered by dispatch
	prefills   []prefillStep
	positions  map[*attempt]*attemptPosition
	maxContext float64 // maximum context that ran at once
	together   float64 // tokens within so many seconds of each other are of one step
}

// attemptPosition is the position of an attempt on its timeline.
type attemptPosition struct {
	first, end sums
	// step is the prefill step that ended with its first token; alone reports that the replica had no
	// other request from its dispatch until then.
	step  int
	alone bool
	// running and context are the running requests and their context at its dispatch.
	running, context float64
}

// promptSteps returns how many steps compute that many prompt tokens. With mixed steps, the tokens generated beside count
// towards a step's limit.
func (m *timing) promptSteps(tokens, running float64, chunk int) float64 {
	limit := float64(chunk)
	if m.mixed {
		limit = max(1, limit-running)
	}
	return math.Ceil(tokens / limit)
}

// timelines returns the timeline of each replica.
func timelines(all []*attempt) []*timeline {
	by := map[string]*timeline{}
	var out []*timeline
	for _, s := range all {
		l := by[s.replica]
		if l == nil {
			l = &timeline{}
			by[s.replica] = l
			out = append(out, l)
		}
		l.attempts = append(l.attempts, s)
	}
	for _, l := range out {
		slices.SortStableFunc(l.attempts, func(a, b *attempt) int { return cmp.Compare(a.sent, b.sent) })
	}
	return out
}

// compute computes the timeline. First tokens within together of each other end the same prefill step;
// chunk is the token limit of a step.
func (l *timeline) compute(m *timing, together float64, chunk int) {
	l.together = together
	l.positions = make(map[*attempt]*attemptPosition, len(l.attempts))
	for _, s := range l.attempts {
		l.positions[s] = &attemptPosition{}
	}
	l.groupPrefills(m, chunk)
	l.findAlone()
	l.integrate(m)
}

// groupPrefills finds the prefill steps from the first tokens at their ends.
func (l *timeline) groupPrefills(m *timing, chunk int) {
	former := l.prefills
	l.prefills = nil
	var begun []*attempt
	for _, s := range l.attempts {
		if s.first > 0 {
			begun = append(begun, s)
		}
	}
	slices.SortStableFunc(begun, func(a, b *attempt) int { return cmp.Compare(a.first, b.first) })
	for _, s := range begun {
		at := s.first.Seconds()
		if n := len(l.prefills); n == 0 || at-l.prefills[n-1].end > l.together {
			l.prefills = append(l.prefills, prefillStep{end: at})
		}
		l.positions[s].step = len(l.prefills) - 1
		l.prefills[len(l.prefills)-1].tokens += float64(s.uncached())
	}
	for i := range l.prefills {
		p := &l.prefills[i]
		if i < len(former) { // the same steps: groups do not depend on the timing
			p.running, p.context = former[i].running, former[i].context
		}
		p.steps = m.promptSteps(p.tokens, p.running, chunk)
	}
}

// findAlone marks the attempts whose first token no other request delayed.
func (l *timeline) findAlone() {
	busy := time.Duration(-1) // end of the latest earlier attempt
	for i, s := range l.attempts {
		next := i+1 == len(l.attempts) || l.attempts[i+1].sent > s.first
		l.positions[s].alone = s.first > 0 && s.sent > busy && next
		busy = max(busy, s.end)
	}
}

// timelineMark is a moment at which the state of a timeline changes.
type timelineMark struct {
	at      float64
	kind    markKind
	attempt *attempt
	step    int
}

type markKind int

// Marks at the same moment apply in this order: requests that end with a mixed step are part of it, finished
// requests leave before the next step, and a prefill ends before its requests begin to decode.
const (
	markMixed markKind = iota // markPrefilled of a mixed step
	markEnd
	markSent
	markStall
	markPrefilled
	markFirst
)

// marks lists the changes in order of time.
func (l *timeline) marks(m *timing) []timelineMark {
	var marks []timelineMark
	before, prefilled := 0.0, markPrefilled
	if m.mixed {
		prefilled = markMixed
	}
	for i := range l.prefills {
		p := &l.prefills[i]
		begin := max(before, p.end-m.stepTime(p))
		before = p.end
		marks = append(marks, timelineMark{begin, markStall, nil, i}, timelineMark{p.end, prefilled, nil, i})
	}
	for _, s := range l.attempts {
		if s.first == 0 {
			continue
		}
		marks = append(marks, timelineMark{s.sent.Seconds(), markSent, s, 0})
		// Requests of one step start decoding together: the differences between their first tokens are
		// network time.
		begin := l.prefills[l.positions[s].step].end
		if end := l.stepEnd(m, s.end.Seconds()); end > begin { // otherwise it ended with its first token
			marks = append(marks, timelineMark{begin, markFirst, s, 0}, timelineMark{end, markEnd, s, 0})
		}
	}
	slices.SortStableFunc(marks, func(a, b timelineMark) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind)) })
	return marks
}

// stepEnd returns the end of the step that generated a last token at a time. If it was a mixed step, that is the time
// of the step's first tokens: the difference is network time.
func (l *timeline) stepEnd(m *timing, at float64) float64 {
	if !m.mixed {
		return at
	}
	i, _ := slices.BinarySearchFunc(l.prefills, at-l.together, func(p prefillStep, at float64) int { return cmp.Compare(p.end, at) })
	if i < len(l.prefills) && l.prefills[i].end <= at+l.together {
		return l.prefills[i].end
	}
	return at
}

// integrate computes the sums along the timeline and stores them at each attempt's first
// token and end.
func (l *timeline) integrate(m *timing) {
	var now sums
	var at, running, context float64
	stalled := 0
	for _, k := range l.marks(m) {
		if stalled == 0 && running > 0 {
			steps := (k.at - at) / m.decode(running, context)
			steps = (k.at - at) / m.decode(running, context+running*steps/2) // the context grows during the steps
			now.steps += steps
			now.requests += steps * running
			now.context += steps * (context + running*max(0, steps-1)/2)
			context += steps * running
		}
		at = k.at
		l.maxContext = max(l.maxContext, context)
		switch k.kind {
		case markStall:
			stalled++
		case markPrefilled, markMixed:
			stalled--
			p := &l.prefills[k.step]
			p.running, p.context = running, context
			now.prefills += p.steps
			now.prefilled += p.tokens
			if m.mixed {
				now.steps += p.steps
				now.requests += p.steps * running
				now.context += p.steps * context
				context += p.steps * running
			}
		case markSent:
			l.positions[k.attempt].running, l.positions[k.attempt].context = running, context
		case markFirst:
			l.positions[k.attempt].first = now
			running++
			context += float64(k.attempt.prompt) + 1
		case markEnd:
			s := l.positions[k.attempt]
			s.end = now
			running--
			context -= float64(k.attempt.prompt) + 1 + now.steps - s.first.steps
		}
	}
}
