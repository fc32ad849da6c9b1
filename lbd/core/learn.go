package core

import (
	"sort"
	"time"

	"skyserve/lbd/policy"
)

const (
	// paceWeight and hitWeight are the weights of each answer in what is learned of
	// a replica's speed and of how much of the prompts the engines find cached.
	paceWeight = 0.05
	hitWeight  = 0.01
	// paceTokens and paceShare are the fewest tokens, and the least share of its
	// stay, that an answer must have streamed to tell a replica's speed: one that
	// came in a piece tells nothing.
	paceTokens = 8
	paceShare  = 0.1
	// sameHardware is how much two replicas' paces may differ, as a ratio, for them
	// to be taken for the same hardware, whose requests differ by chance.
	sameHardware = 1.25
	// paceLimit bounds a pace on both sides: a clock that jumps must not spoil it.
	paceLimit = 100
)

// mean is a running mean (EWMA); its zero value has seen nothing.
type mean struct {
	value float64
	any   bool
}

func (m *mean) add(v, weight float64) {
	if !m.any {
		m.value, m.any = v, true
		return
	}
	m.value += weight * (v - m.value)
}

func (m *mean) or(instead float64) float64 {
	if m.any {
		return m.value
	}
	return instead
}

// started notes r's first token, from which its pace is measured.
func (r *request) started(now time.Duration) {
	r.firstAt = now
	r.firstCount, r.firstContext = r.target.outstanding, r.target.work.context()
}

// learn takes what the end of r at t tells of the engine.
func (b *Balancer) learn(now time.Duration, t *target, r *request, out *Outcome) {
	t.stayed(now - r.sentAt)
	if out == nil {
		return
	}
	if out.CachedTokens.Known {
		b.hits.add(min(1, float64(max(0, out.CachedTokens.Value))/float64(max(1, r.tokens()))), hitWeight)
	}
	t.learnStay(now-r.sentAt, r, out.OutputTokens.Or(0))
	streamed := now - r.firstAt
	if t.peer || !out.OutputTokens.Known || out.OutputTokens.Value < paceTokens || r.firstAt == 0 ||
		streamed <= 0 || float64(streamed) < paceShare*float64(now-r.sentAt) {
		return
	}
	// The load of its middle, about.
	n, context := (r.firstCount+t.outstanding+1)/2, (r.firstContext+t.work.context())/2
	step := streamed.Seconds() / float64(out.OutputTokens.Value-1)
	t.pace.add(min(max(step/policy.NominalStep(n, context).Seconds(), 1.0/paceLimit), paceLimit), paceWeight)
}

// comparePaces gives every replica the pace of its hardware: the mean over the
// replicas that are, one by one, within sameHardware of each other. One of which
// nothing is known yet is taken for as fast as the fastest of its model: tried, it
// shows; taken for slow, it never would.
func (b *Balancer) comparePaces() {
	b.byPace = b.byPace[:0]
	for _, t := range b.replicas {
		if t.pace.any {
			b.byPace = append(b.byPace, t)
		}
	}
	paces := b.byPace
	sort.SliceStable(paces, func(i, j int) bool { return paces[i].pace.value < paces[j].pace.value })
	for len(paces) > 0 {
		n, sum := 1, paces[0].pace.value
		for n < len(paces) && paces[n].pace.value <= sameHardware*paces[n-1].pace.value {
			sum += paces[n].pace.value
			n++
		}
		for _, t := range paces[:n] {
			t.hardwarePace = sum / float64(n)
		}
		paces = paces[n:]
	}
	model, fastest := "", 0.0 // one search for all in a row that have the same model
	for _, t := range b.replicas {
		if t.pace.any {
			continue
		}
		if fastest == 0 || t.model != model {
			model, fastest = t.model, b.fastestPace(t.model)
		}
		t.hardwarePace = fastest
	}
}

// fastestPace is the least pace that is known of a model's replicas, here or, as
// they tell, at peers; 1 where none is.
func (b *Balancer) fastestPace(model string) float64 {
	fastest := 0.0
	hear := func(pace float64) {
		if pace > 0 && (fastest == 0 || pace < fastest) {
			fastest = pace
		}
	}
	for _, t := range b.replicas {
		if t.model == model && t.pace.any {
			hear(t.hardwarePace)
		}
	}
	for _, t := range b.peers {
		if l := t.load(model); l != nil {
			hear(l.Pace)
		}
	}
	if fastest == 0 {
		return 1
	}
	return fastest
}

// paceThere is a peer's pace: that of replicas here where it is taken for the
// same hardware; 1 where nothing is known.
func (b *Balancer) paceThere(l *ModelLoad) float64 {
	if l.Pace <= 0 {
		return b.fastestPace(l.Model) // nobody has tried them yet
	}
	for _, t := range b.replicas {
		if p := t.paceHere(); l.Pace <= sameHardware*p && p <= sameHardware*l.Pace {
			return p
		}
	}
	return l.Pace
}

// paceHere is a replica's pace; 1 before anything was learned.
func (t *target) paceHere() float64 {
	if t.hardwarePace == 0 {
		return 1
	}
	return t.hardwarePace
}

// meanPace is the mean over the model's replicas that answer and whose pace is
// known; 0 where none is.
func (b *Balancer) meanPace(now time.Duration, model string) float64 {
	sum, n := 0.0, 0
	for _, t := range b.replicas {
		if t.model == model && t.pace.any && !t.draining && t.live(now, &b.cfg) {
			sum += t.paceHere()
			n++
		}
	}
	return sum / float64(max(n, 1))
}
