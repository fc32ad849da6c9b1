package sim

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/prefix"
)

// stay is a request at an engine, or on its way: it finishes in steps, and then frees so many tokens,
// including its reserve.
type stay struct{ steps, frees int }

// sight is the state of one replica at an instant.
type sight struct {
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

	stays    []stay    // present requests, by steps
	sums     []int     // prefix sums of their steps
	freed    []float64 // maximum memory freed until each finishes
	due      []*leg    // those without a first token, by arrival
	context  int       // context tokens of present requests
	backlog  int       // prompt tokens of due not yet computed
	promised int       // tokens that admitted requests may still generate
	need     float64   // memory needed to admit the others
	pending  int       // number of those

	// computed is the estimated uncached prompt of each present request.
	computed map[*leg]int
	// gone are requests sent during the current event; they are included above.
	gone []*leg

	// Requests waiting at its door, and the sum of their start times.
	atDoor int
	sinces time.Duration
}

// look updates the state of all replicas, once per event.
func (o *oracle) look() {
	if o.event == o.w.events {
		return
	}
	o.event = o.w.events
	for len(o.sights) < len(o.w.replicas) {
		o.sights = append(o.sights, &sight{r: o.w.replicas[len(o.sights)], computed: map[*leg]int{}})
	}
	if o.manner == nil {
		o.manner = mannerOf(o.w.replicas)
	}
	for _, s := range o.sights {
		s.look()
	}
	if len(o.waiting) > 2*len(o.n.legs)+64 {
		for f, q := range o.waiting { // integer sums: the order does not matter
			if l := o.n.legs[f.id]; l == nil || l.flight != f {
				o.leaveDoor(q)
				delete(o.waiting, f)
			}
		}
	}
}

// sightOf returns the state of a replica, which is usually at the candidate's index; nil if there is no
// such replica.
func (o *oracle) sightOf(i int, id string) *sight {
	if i < len(o.sights) && o.sights[i].r.id == id {
		return o.sights[i]
	}
	for _, s := range o.sights {
		if s.r.id == id {
			return s
		}
	}
	return nil
}

// look updates the state if anything has changed.
func (s *sight) look() {
	l := s.r.engine.Load()
	if len(s.gone) == 0 && l == s.load && s.engine == s.r.engine && s.coming == len(s.r.due) {
		return
	}
	if s.engine != s.r.engine || l.PrefillSteps != s.load.PrefillSteps || l.Finished != s.load.Finished || l.EvictedTokens != s.load.EvictedTokens {
		s.cacheVersion++
	}
	s.load, s.engine, s.coming = l, s.r.engine, len(s.r.due)
	s.version++
	s.gone, s.stays, s.due = s.gone[:0], s.stays[:0], s.due[:0]
	s.context, s.backlog, s.promised, s.need, s.pending = 0, 0, 0, 0, 0
	s.readProfile()
	s.seeDecoding()
	s.seeDue()
	s.sum()
	s.forget()
}

// readProfile loads the engine's constants.
func (s *sight) readProfile() {
	p, slow := s.engine.Profile(), 1.0
	if s.r.clock.stretch > 0 {
		slow = float64(s.r.clock.stretch) / perMille
	}
	s.profile = p
	s.prefillBase, s.perToken = straight(p.Prefill, p.PrefillBase, p.PrefillPerToken)
	s.decodeBase, s.perRequest = straight(p.Decode, p.DecodeBase, p.DecodePerRequest)
	for _, t := range []*float64{&s.prefillBase, &s.perToken, &s.decodeBase, &s.perRequest} {
		*t *= slow
	}
	s.perKV, s.reserve = slow*p.DecodePerKVToken.Seconds(), float64(p.ReservePerMille)/1000
}

// straight returns a base and a slope in seconds: the given ones or, with a measured curve, those of
// the line through its ends.
func straight(c engine.Curve, base, slope time.Duration) (atNothing, each float64) {
	if len(c) == 0 {
		return base.Seconds(), slope.Seconds()
	}
	first, last := c[0], c[len(c)-1]
	each = (last.Time - first.Time).Seconds() / float64(max(1, last.At-first.At))
	return max(0, first.Time.Seconds()-each*float64(first.At)), each
}

// seeDecoding adds requests with a first token.
func (s *sight) seeDecoding() {
	for id, j := range s.r.jobs { // integer sums, sorted afterwards
		if s.r.due[j.leg] {
			continue
		}
		f := j.leg.flight
		most, length := s.bounds(f)
		emitted, _ := s.engine.Generated(id)
		s.stays = append(s.stays, stay{max(0, length-emitted), s.computed[j.leg] + length + s.spare(most-length)})
		s.context += f.promptTokens() + emitted
		s.promised += max(0, most-emitted)
	}
}

// seeDue adds requests without a first token: those in prefill, then pending ones, then those on their
// way.
func (s *sight) seeDue() {
	prefilling := s.load.Running - len(s.stays)
	for l := range s.r.due {
		s.due = append(s.due, l)
	}
	slices.SortFunc(s.due, func(a, b *leg) int {
		// requests without a number come last
		return cmp.Or(cmp.Compare(a.job-1, b.job-1), cmp.Compare(a.flight.id, b.flight.id))
	})
	for i, l := range s.due {
		f := l.flight
		uncached := f.promptTokens() - s.engine.CachedPrefix(f.prompt)
		if thought, ok := s.computed[l]; ok {
			uncached = min(uncached, thought)
		}
		s.add(l, uncached, i < prefilling)
	}
}

// add adds a request without a first token.
func (s *sight) add(l *leg, uncached int, admitted bool) {
	most, length := s.bounds(l.flight)
	s.stays = append(s.stays, stay{length, uncached + length + s.spare(most-length)})
	s.context += l.flight.promptTokens()
	s.backlog += uncached
	if admitted {
		s.promised += most
		return
	}
	s.need += float64(uncached) + s.reserve*float64(most)
	s.pending++
}

// leaves adds a request that is being sent.
func (s *sight) leaves(l *leg, uncached int) {
	s.computed[l] = uncached
	s.gone = append(s.gone, l)
	s.add(l, uncached, false)
	s.sum()
}

// bounds returns the maximum number of tokens a request may generate, and how many it will.
func (s *sight) bounds(f *flight) (most, length int) {
	most = max(1, min(f.maxNew, s.profile.KVTokens-f.promptTokens()))
	return most, min(most, max(1, f.request.OutputTokens))
}

// spare returns the reserve for a number of tokens.
func (s *sight) spare(tokens int) int { return tokens * s.profile.ReservePerMille / 1000 }

// sum sorts the present requests and computes their sums.
func (s *sight) sum() {
	slices.SortFunc(s.stays, func(a, b stay) int { return cmp.Or(cmp.Compare(a.steps, b.steps), cmp.Compare(a.frees, b.frees)) })
	s.sums, s.freed = s.sums[:0], s.freed[:0]
	steps, frees, most := 0, 0, 0.0
	for i, t := range s.stays {
		steps += t.steps
		frees += t.frees
		grown := steps + (len(s.stays)-i-1)*t.steps
		most = max(most, float64(frees)-(1-s.reserve)*float64(grown))
		s.sums, s.freed = append(s.sums, steps), append(s.freed, most)
	}
}

// forget removes entries of requests that have left.
func (s *sight) forget() {
	if len(s.computed) <= 2*(len(s.r.jobs)+len(s.r.due))+64 {
		return
	}
	for l := range s.computed {
		if j, there := s.r.jobs[l.job]; !s.r.due[l] && (!there || j.leg != l) {
			delete(s.computed, l)
		}
	}
}

// outlook is the oracle's state of a waiting request.
type outlook struct {
	leg    *leg
	tokens int     // of its prompt
	queued float64 // requests waiting besides it, per replica

	door  *sight // where it waits to share a prefill step
	since time.Duration

	found []found // by replica
}

// found is the cached part of a prompt at a replica, in tokens, with the versions it is valid for.
type found struct {
	cached, shared        int
	cacheVersion, version int
}

// outlook returns the state of the waiting request of a leg.
func (o *oracle) outlook(l *leg) *outlook {
	q := o.waiting[l.flight]
	if q == nil {
		q = &outlook{tokens: l.flight.promptTokens(), found: make([]found, len(o.w.replicas))}
		o.waiting[l.flight] = q
	}
	q.leg = l
	return q
}

// cached returns the number of prompt tokens that the replica will not have to compute when the request
// arrives: tokens in its cache, or shared with a request there or on its way. The last token of a
// prompt is always computed.
func (q *outlook) cached(s *sight) int {
	f, at := q.leg.flight, &q.found[s.r.index]
	if at.cacheVersion != s.cacheVersion {
		*at = found{cached: s.engine.CachedPrefix(f.prompt), cacheVersion: s.cacheVersion}
	}
	if at.version != s.version {
		at.version, at.shared = s.version, at.cached
		for _, l := range s.due {
			at.shared = max(at.shared, inCommon(f, l.flight))
		}
	}
	best := at.shared
	for _, l := range s.gone {
		best = max(best, inCommon(f, l.flight))
	}
	return max(0, min(best, q.tokens-1))
}

// inCommon returns the length in tokens of the common prefix of two prompts, in whole blocks.
func inCommon(a, b *flight) int { return alike(a.key, b.key) * prefix.BlockBytes / wordBytes }

// alike returns the number of common leading blocks of two keys. A hash covers all blocks before it, so
// binary search works.
func alike(a, b prefix.Key) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i] != b[i] })
}
