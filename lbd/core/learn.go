package core

import (
	"time"

	"skyserve/lbd/core/pace"
	"skyserve/lbd/policy"
)

// hitWeight is the weight of each response in the hit rate.
const hitWeight = 0.01

// recordFirstToken records the time and load of r's first token, for measuring the pace.
func (r *request) recordFirstToken(now time.Duration) {
	r.firstTokenAt = now
	r.firstTokenOutstanding, r.firstTokenContext = r.target.outstanding, r.target.work.context()
	r.firstTokenBatch = r.target.prefillTotal.batch
}

// learnFromFirstToken updates the learned limit of r's target, if it is in use.
func (b *Balancer) learnFromFirstToken(now time.Duration, r *request) {
	if t := r.target; !r.prefilled && !t.peer && t.usesOutstandingLimit(now, &b.cfg) && !t.slots.Known {
		t.limit.FirstToken(t.starts.running, t.outstanding, b.cfg.OutstandingLimit)
	}
}

// recordStreamEnd records in the learned limit of t that r is no longer streaming, if it was. r is
// still outstanding.
func (t *target) recordStreamEnd(now time.Duration, r *request) {
	if r.prefilled && !t.peer {
		t.limit.Ended(int64(r.firstTokenAt-r.sentAt), int64(now-r.firstTokenAt), t.outstanding)
	}
}

// learnFromEnd updates the estimates of t from a request that ended.
func (b *Balancer) learnFromEnd(now time.Duration, t *target, r *request, out *Outcome) {
	t.recordResidence(now - r.sentAt)
	if out == nil {
		return
	}
	if out.CachedTokens.Known {
		b.hitRate.Add(min(1, float64(max(0, out.CachedTokens.Value))/float64(max(1, r.promptLength()))), hitWeight)
	}
	if !t.peer { // which has several caches
		b.queue(r.Model).evictions.addPrompt(r, out)
	}
	t.learnResidence(now-r.sentAt, r, out.OutputTokens.Or(0))
	streamed := now - r.firstTokenAt
	if t.peer || !out.OutputTokens.Known || r.firstTokenAt == 0 || !pace.Informative(out.OutputTokens.Value, streamed, now-r.sentAt) {
		return
	}
	// The approximate load halfway through the answer.
	n, context := (r.firstTokenOutstanding+t.outstanding+1)/2, (r.firstTokenContext+t.work.context())/2
	steps := time.Duration(out.OutputTokens.Value-1) * policy.NominalStep(n, context)
	t.pace.LearnStream(streamed, steps+policy.NominalPrefill(t.prefillTotal.since(r.firstTokenBatch)))
}

// updatePaces gives replicas with similar measured paces, which are assumed to have the same hardware, the mean of these
// paces (pace.Group). It assumes that a replica without measurements is as fast as the fastest of its model: a replica
// assumed to be slow would receive no requests and would never be measured.
func (b *Balancer) updatePaces() {
	b.scratchPaces = b.scratchPaces[:0]
	for _, t := range b.replicas {
		if t.pace.Known() {
			b.scratchPaces = append(b.scratchPaces, &t.pace)
		}
	}
	pace.Group(b.scratchPaces)
	model, fastest := "", 0.0 // searched once per sequence of replicas with the same model
	for _, t := range b.replicas {
		if t.pace.Known() {
			continue
		}
		if fastest == 0 || t.model != model {
			model, fastest = t.model, b.fastestPace(t.model)
		}
		t.pace.Assume(fastest)
	}
}

// fastestPace returns the pace of a model's fastest replica, here or reported by peers; 1 if none is known. The
// fastest has the lowest pace, because a pace is time per token relative to the nominal replica.
func (b *Balancer) fastestPace(model string) float64 {
	fastest := 0.0
	consider := func(pace float64) {
		if pace > 0 && (fastest == 0 || pace < fastest) {
			fastest = pace
		}
	}
	for _, t := range b.replicas {
		if t.model == model && t.pace.Known() {
			consider(t.pace.Hardware())
		}
	}
	for _, t := range b.peers {
		if l := t.modelLoad(model); l != nil {
			consider(l.Pace)
		}
	}
	if fastest == 0 {
		return 1
	}
	return fastest
}

// peerPace returns a peer's pace: that of a replica here with a similar pace, if there is one,
// and otherwise the reported one. A peer that reports none is assumed to be as fast as fastestPace.
func (b *Balancer) peerPace(l *ModelLoad) float64 {
	if l.Pace <= 0 {
		return b.fastestPace(l.Model) // not measured yet
	}
	for _, t := range b.replicas {
		if p := t.pace.Value(); pace.SameHardware(l.Pace, p) {
			return p
		}
	}
	return l.Pace
}

// meanPace returns the mean pace of the model's live replicas with a known pace; 0 if there is
// none.
func (b *Balancer) meanPace(now time.Duration, model string) float64 {
	sum, n := 0.0, 0
	for _, t := range b.replicas {
		if t.model == model && t.pace.Known() && !t.draining && t.live(now, &b.cfg) {
			sum += t.pace.Value()
			n++
		}
	}
	return sum / float64(max(n, 1))
}
