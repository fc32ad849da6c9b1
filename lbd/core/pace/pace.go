// Package pace learns how fast replicas are from the answers that they gave: a pace is the
// time that something takes at a replica over what it takes at the nominal one (lbd/policy).
// Replicas whose paces are close are taken for the same hardware and share one.
package pace

import (
	"sort"
	"time"
)

const (
	// weight is the weight of each answer in what is learned.
	weight = 0.05
	// minTokens and minShare are the fewest tokens, and the least share of its stay, that an
	// answer must have streamed to show a replica's speed: one that came in a piece does not.
	minTokens = 8
	minShare  = 0.1
	// sameHardware is how much two replicas' paces may differ, as a ratio, for them
	// to be taken for the same hardware, whose requests differ by chance.
	sameHardware = 1.25
	// Limit bounds a pace on both sides: a clock that jumps must not spoil it.
	Limit = 100
)

// Mean is a running mean (EWMA); its zero value has seen nothing.
type Mean struct {
	value float64
	any   bool
}

// Add takes a value in with a weight.
func (m *Mean) Add(v, weight float64) {
	if !m.any {
		m.value, m.any = v, true
		return
	}
	m.value += weight * (v - m.value)
}

// Or is the mean, or instead before there is one.
func (m *Mean) Or(instead float64) float64 {
	if m.any {
		return m.value
	}
	return instead
}

// Learned is what is known of one replica's speed. The zero value knows nothing.
type Learned struct {
	own      Mean    // of the time between two tokens of an answer
	hardware float64 // of all like it; 0 = nothing is known
	stay     Mean    // of how long answers stay, from the send to the end
}

// Known reports whether the replica was seen to generate.
func (l *Learned) Known() bool { return l.own.any }

// Value is the pace of the replica's hardware; 1 before anything was learned.
func (l *Learned) Value() float64 {
	if l.hardware == 0 {
		return 1
	}
	return l.hardware
}

// Hardware is the pace of the replica's hardware; 0 before it was grouped with others.
func (l *Learned) Hardware() float64 { return l.hardware }

// Stay is the pace of whole answers, or that of tokens before any was learned.
func (l *Learned) Stay() float64 { return l.stay.Or(l.Value()) }

// Tells reports whether an answer of so many tokens, streamed for a part of its stay, shows
// the speed of tokens.
func Tells(tokens int, streamed, stay time.Duration) bool {
	return tokens >= minTokens && streamed > 0 && float64(streamed) >= minShare*float64(stay)
}

// LearnStep learns from the time between two tokens, in seconds.
func (l *Learned) LearnStep(step float64, nominal time.Duration) {
	l.own.Add(bounded(step/nominal.Seconds()), weight)
}

// LearnStay learns from how long an answer of so many tokens stayed.
func (l *Learned) LearnStay(tokens int, stay, nominal time.Duration) {
	if tokens >= minTokens && stay > 0 {
		l.stay.Add(bounded(stay.Seconds()/nominal.Seconds()), weight)
	}
}

func bounded(pace float64) float64 { return min(max(pace, 1.0/Limit), Limit) }

// Assume gives a replica of which nothing is known the pace of others.
func (l *Learned) Assume(pace float64) { l.hardware = pace }

// Group gives every replica of a list, each of which is known, the pace of its hardware: the
// mean over the replicas that are, one by one, within sameHardware of each other. It sorts
// the list.
func Group(replicas []*Learned) {
	sort.SliceStable(replicas, func(i, j int) bool { return replicas[i].own.value < replicas[j].own.value })
	for len(replicas) > 0 {
		n, sum := 1, replicas[0].own.value
		for n < len(replicas) && replicas[n].own.value <= sameHardware*replicas[n-1].own.value {
			sum += replicas[n].own.value
			n++
		}
		for _, l := range replicas[:n] {
			l.hardware = sum / float64(n)
		}
		replicas = replicas[n:]
	}
}

// Same reports whether two paces are taken for the same hardware's.
func Same(a, b float64) bool { return a <= sameHardware*b && b <= sameHardware*a }
