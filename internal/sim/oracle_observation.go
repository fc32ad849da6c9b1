package sim

import (
	"cmp"
	"slices"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/prefix"
)

// remainingWork is a request at an engine, or on its way: it finishes after steps decode steps, and then frees
// frees tokens, including its reserve.
type remainingWork struct{ steps, frees int }

// replicaState is the state of one replica at an instant.
type replicaState struct {
	r       *replica
	profile engine.Profile
	// The profile's times in seconds, including the current slow-down.
	prefillBase, perToken, decodeBase, perRequest, perKV float64
	reserve                                              float64 // share of the tokens to be generated

	// Inputs of the state: while they are unchanged, the rest is valid.
	load   engine.Load
	engine *engine.Engine
	coming int // legs in replica.due
	// version counts the updates, cacheVersion those with a changed cache.
	version, cacheVersion int

	remaining []remainingWork // present requests, by steps
	sums      []int           // prefix sums of their steps
	freed     []float64       // maximum memory freed until each finishes
	due       []*leg          // those without a first token, by arrival
	context   int             // context tokens of present requests
	backlog   int             // prompt tokens of due not yet computed
	promised  int             // tokens that admitted requests may still generate
	need      float64         // memory needed to admit the others
	pending   int             // number of those

	// computed is the estimated uncached prompt of each present request.
	computed map[*leg]int
	// justSent are requests sent during the current event; they are included above.
	justSent []*leg

	// Requests waiting at its gate, and the sum of their start times.
	gateWaiters int
	gateSince   time.Duration
}

// refresh updates the state of all replicas, once per event.
func (o *oracle) refresh() {
	if o.event == o.w.events {
		return
	}
	o.event = o.w.events
	for len(o.states) < len(o.w.replicas) {
		o.states = append(o.states, &replicaState{r: o.w.replicas[len(o.states)], computed: map[*leg]int{}})
	}
	if o.weights == nil {
		o.weights = weightsFor(o.w.replicas)
	}
	for _, s := range o.states {
		s.refresh()
	}
	if len(o.waiting) > 2*len(o.n.legs)+64 {
		for f, q := range o.waiting { // integer sums: the order does not matter
			if l := o.n.legs[f.id]; l == nil || l.request != f {
				o.leaveGate(q)
				delete(o.waiting, f)
			}
		}
	}
}

// stateOf returns the state of a replica, which is usually at the candidate's index; nil if there is no
// such replica.
func (o *oracle) stateOf(i int, id string) *replicaState {
	if i < len(o.states) && o.states[i].r.id == id {
		return o.states[i]
	}
	for _, s := range o.states {
		if s.r.id == id {
			return s
		}
	}
	return nil
}

// refresh updates the state if anything has changed.
func (s *replicaState) refresh() {
	l := s.r.engine.Load()
	if len(s.justSent) == 0 && l == s.load && s.engine == s.r.engine && s.coming == len(s.r.due) {
		return
	}
	if s.engine != s.r.engine || l.PrefillSteps != s.load.PrefillSteps || l.Finished != s.load.Finished || l.EvictedTokens != s.load.EvictedTokens {
		s.cacheVersion++
	}
	s.load, s.engine, s.coming = l, s.r.engine, len(s.r.due)
	s.version++
	s.justSent, s.remaining, s.due = s.justSent[:0], s.remaining[:0], s.due[:0]
	s.context, s.backlog, s.promised, s.need, s.pending = 0, 0, 0, 0, 0
	s.readProfile()
	s.addDecoding()
	s.addDue()
	s.computeSums()
	s.forget()
}

// readProfile loads the engine's constants.
func (s *replicaState) readProfile() {
	p, slow := s.engine.Profile(), 1.0
	if s.r.clock.stretch > 0 {
		slow = float64(s.r.clock.stretch) / perMille
	}
	s.profile = p
	s.prefillBase, s.perToken = linearTimes(p.Prefill, p.PrefillBase, p.PrefillPerToken)
	s.decodeBase, s.perRequest = linearTimes(p.Decode, p.DecodeBase, p.DecodePerRequest)
	for _, t := range []*float64{&s.prefillBase, &s.perToken, &s.decodeBase, &s.perRequest} {
		*t *= slow
	}
	s.perKV, s.reserve = slow*p.DecodePerKVToken.Seconds(), float64(p.ReservePerMille)/1000
}

// linearTimes returns a base and a slope in seconds: the given ones or, with a measured curve, those of
// the line through its ends.
func linearTimes(c engine.Curve, base, slope time.Duration) (atNothing, each float64) {
	if len(c) == 0 {
		return base.Seconds(), slope.Seconds()
	}
	first, last := c[0], c[len(c)-1]
	each = (last.Time - first.Time).Seconds() / float64(max(1, last.At-first.At))
	return max(0, first.Time.Seconds()-each*float64(first.At)), each
}

// addDecoding adds requests with a first token.
func (s *replicaState) addDecoding() {
	for id, j := range s.r.jobs { // integer sums, sorted afterwards
		if s.r.due[j.leg] {
			continue
		}
		f := j.leg.request
		maxTokens, length := s.tokenBounds(f)
		emitted, _ := s.engine.Generated(id)
		s.remaining = append(s.remaining, remainingWork{max(0, length-emitted), s.computed[j.leg] + length + s.reserveFor(maxTokens-length)})
		s.context += f.promptTokens() + emitted
		s.promised += max(0, maxTokens-emitted)
	}
}

// addDue adds requests without a first token: those in prefill, then pending ones, then those on their
// way.
func (s *replicaState) addDue() {
	prefilling := s.load.Running - len(s.remaining)
	for l := range s.r.due {
		s.due = append(s.due, l)
	}
	slices.SortFunc(s.due, func(a, b *leg) int {
		// requests without a number come last
		return cmp.Or(cmp.Compare(a.job-1, b.job-1), cmp.Compare(a.request.id, b.request.id))
	})
	for i, l := range s.due {
		f := l.request
		uncached := f.promptTokens() - s.engine.CachedPrefix(f.prompt)
		if thought, ok := s.computed[l]; ok {
			uncached = min(uncached, thought)
		}
		s.addRequest(l, uncached, i < prefilling)
	}
}

// addRequest adds a request without a first token.
func (s *replicaState) addRequest(l *leg, uncached int, admitted bool) {
	maxTokens, length := s.tokenBounds(l.request)
	s.remaining = append(s.remaining, remainingWork{length, uncached + length + s.reserveFor(maxTokens-length)})
	s.context += l.request.promptTokens()
	s.backlog += uncached
	if admitted {
		s.promised += maxTokens
		return
	}
	s.need += float64(uncached) + s.reserve*float64(maxTokens)
	s.pending++
}

// addSent adds a request that is being sent.
func (s *replicaState) addSent(l *leg, uncached int) {
	s.computed[l] = uncached
	s.justSent = append(s.justSent, l)
	s.addRequest(l, uncached, false)
	s.computeSums()
}

// tokenBounds returns the maximum number of tokens a request may generate, and how many it will.
func (s *replicaState) tokenBounds(f *clientRequest) (maxTokens, length int) {
	maxTokens = max(1, min(f.maxNew, s.profile.KVTokens-f.promptTokens()))
	return maxTokens, min(maxTokens, max(1, f.request.OutputTokens))
}

// reserveFor returns the reserve for a number of tokens.
func (s *replicaState) reserveFor(tokens int) int { return tokens * s.profile.ReservePerMille / 1000 }

// computeSums sorts the present requests and computes their sums.
func (s *replicaState) computeSums() {
	slices.SortFunc(s.remaining, func(a, b remainingWork) int {
		return cmp.Or(cmp.Compare(a.steps, b.steps), cmp.Compare(a.frees, b.frees))
	})
	s.sums, s.freed = s.sums[:0], s.freed[:0]
	steps, frees, peak := 0, 0, 0.0
	for i, t := range s.remaining {
		steps += t.steps
		frees += t.frees
		grown := steps + (len(s.remaining)-i-1)*t.steps
		peak = max(peak, float64(frees)-(1-s.reserve)*float64(grown))
		s.sums, s.freed = append(s.sums, steps), append(s.freed, peak)
	}
}

// forget removes entries of requests that have left.
func (s *replicaState) forget() {
	if len(s.computed) <= 2*(len(s.r.jobs)+len(s.r.due))+64 {
		return
	}
	for l := range s.computed {
		if j, there := s.r.jobs[l.job]; !s.r.due[l] && (!there || j.leg != l) {
			delete(s.computed, l)
		}
	}
}

// waitingRequest is the oracle's state of a waiting request.
type waitingRequest struct {
	leg    *leg
	tokens int     // of its prompt
	queued float64 // requests waiting besides it, per replica

	gate  *replicaState // where it waits to share a prefill step
	since time.Duration

	found []cachedPart // by replica
}

// cachedPart is the cached part of a prompt at a replica, in tokens, with the versions it is valid for.
type cachedPart struct {
	cached, shared        int
	cacheVersion, version int
}

// waitingRequestOf returns the state of the waiting request of a leg.
func (o *oracle) waitingRequestOf(l *leg) *waitingRequest {
	q := o.waiting[l.request]
	if q == nil {
		q = &waitingRequest{tokens: l.request.promptTokens(), found: make([]cachedPart, len(o.w.replicas))}
		o.waiting[l.request] = q
	}
	q.leg = l
	return q
}

// cached returns the number of prompt tokens that the replica will not have to compute when the request
// arrives: tokens in its cache, or shared with a request there or on its way. The last token of a
// prompt is always computed.
func (q *waitingRequest) cached(s *replicaState) int {
	f, at := q.leg.request, &q.found[s.r.index]
	if at.cacheVersion != s.cacheVersion {
		*at = cachedPart{cached: s.engine.CachedPrefix(f.prompt), cacheVersion: s.cacheVersion}
	}
	if at.version != s.version {
		at.version, at.shared = s.version, at.cached
		for _, l := range s.due {
			at.shared = max(at.shared, commonTokens(f, l.request))
		}
	}
	best := at.shared
	for _, l := range s.justSent {
		best = max(best, commonTokens(f, l.request))
	}
	return max(0, min(best, q.tokens-1))
}

// commonTokens returns the length in tokens of the common prefix of two prompts, in whole blocks.
func commonTokens(a, b *clientRequest) int {
	return a.key.CommonBlocks(b.key) * prefix.BlockBytes / wordBytes
}
