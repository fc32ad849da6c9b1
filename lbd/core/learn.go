package core

import (
	"time"

	"skyserve/lbd/core/pace"
	"skyserve/lbd/policy"
)

// hitWeight is the weight of each answer in how much of the prompts the engines find cached.
const hitWeight = 0.01

// recordFirstToken notes r's first token, from which its pace is measured.
func (r *request) recordFirstToken(now time.Duration) {
	r.firstTokenAt = now
	r.firstTokenOutstanding, r.firstTokenContext = r.target.outstanding, r.target.work.context()
}

// learnFromEnd takes what the end of r at t tells of the engine.
func (b *Balancer) learnFromEnd(now time.Duration, t *target, r *request, out *Outcome) {
	t.recordResidence(now - r.sentAt)
	if out == nil {
		return
	}
	if out.CachedTokens.Known {
		b.hitRate.Add(min(1, float64(max(0, out.CachedTokens.Value))/float64(max(1, r.tokens()))), hitWeight)
	}
	t.learnResidence(now-r.sentAt, r, out.OutputTokens.Or(0))
	streamed := now - r.firstTokenAt
	if t.peer || !out.OutputTokens.Known || r.firstTokenAt == 0 || !pace.Informative(out.OutputTokens.Value, streamed, now-r.sentAt) {
		return
	}
	// The load of its middle, about.
	n, context := (r.firstTokenOutstanding+t.outstanding+1)/2, (r.firstTokenContext+t.work.context())/2
	step := streamed.Seconds() / float64(out.OutputTokens.Value-1)
	t.pace.LearnStep(step, policy.NominalStep(n, context))
}

// comparePaces gives every replica the pace of its hardware. One of which nothing is known
// yet is taken for as fast as the fastest of its model: tried, it shows; taken for slow, it
// never would.
func (b *Balancer) comparePaces() {
	b.byPace = b.byPace[:0]
	for _, t := range b.replicas {
		if t.pace.Known() {
			b.byPace = append(b.byPace, &t.pace)
		}
	}
	pace.Group(b.byPace)
	model, fastest := "", 0.0 // one search for all in a row that have the same model
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

// fastestPace is the least pace that is known of a model's replicas, here or, as
// they tell, at peers; 1 where none is.
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

// peerPace is a peer's pace: that of replicas here where it is taken for the
// same hardware; 1 where nothing is known.
func (b *Balancer) peerPace(l *ModelLoad) float64 {
	if l.Pace <= 0 {
		return b.fastestPace(l.Model) // nobody has tried them yet
	}
	for _, t := range b.replicas {
		if p := t.pace.Value(); pace.SameHardware(l.Pace, p) {
			return p
		}
	}
	return l.Pace
}

// meanPace is the mean over the model's replicas that answer and whose pace is
// known; 0 where none is.
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
