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
	// maxSameHardwareRatio is how much two replicas' paces may differ, as a ratio, for them
	// to be taken for the same hardware, whose requests differ by chance.
	maxSameHardwareRatio = 1.25
	// Limit bounds a pace on both sides: a clock that jumps must not spoil it.
	Limit = 100
)

// Mean is a running mean (EWMA); its zero value has seen nothing.
type Mean struct {
	value float64
	known   bool
}

// Add takes a value in with a weight.
func (m *Mean) Add(v, weight float64) {
	if !m.known {
		m.value, m.known = v, true
		return
	}
	m.value += weight * (v - m.value)
}

// Or is the mean, or instead before there is one.
func (m *Mean) Or(fallback float64) float64 {
	if m.known {
		return m.value
	}
	return fallback
}

// Estimate is what is known of one replica's speed. The zero value knows nothing.
type Estimate struct {
	tokenPace      Mean    // of the time between two tokens of an answer
	hardware float64 // of all like it; 0 = nothing is known
	residence     Mean    // of how long answers stay, from the send to the end
}

// Known reports whether the replica was seen to generate.
func (l *Estimate) Known() bool { return l.tokenPace.known }

// Value is the pace of the replica's hardware; 1 before anything was learned.
func (l *Estimate) Value() float64 {
	if l.hardware == 0 {
		return 1
	}
	return l.hardware
}

// Hardware is the pace of the replica's hardware; 0 before it was grouped with others.
func (l *Estimate) Hardware() float64 { return l.hardware }

// Residence is the pace of whole answers, or that of tokens before any was learned.
func (l *Estimate) Residence() float64 { return l.residence.Or(l.Value()) }

// Informative reports whether an answer of so many tokens, streamed for a part of its stay, shows
// the speed of tokens.
func Informative(tokens int, streamed, stay time.Duration) bool {
	return tokens >= minTokens && streamed > 0 && float64(streamed) >= minShare*float64(stay)
}

// LearnStep learns from the time between two tokens, in seconds.
func (l *Estimate) LearnStep(step float64, nominal time.Duration) {
	l.tokenPace.Add(bounded(step/nominal.Seconds()), weight)
}

// LearnResidence learns from how long an answer of so many tokens stayed.
func (l *Estimate) LearnResidence(tokens int, stay, nominal time.Duration) {
	if tokens >= minTokens && stay > 0 {
		l.residence.Add(bounded(stay.Seconds()/nominal.Seconds()), weight)
	}
}

func bounded(pace float64) float64 { return min(max(pace, 1.0/Limit), Limit) }

// Assume gives a replica of which nothing is known the pace of others.
func (l *Estimate) Assume(pace float64) { l.hardware = pace }

// Group gives every replica of a list, each of which is known, the pace of its hardware: the
// mean over the replicas that are, one by one, within maxSameHardwareRatio of each other. It sorts
// the list.
func Group(replicas []*Estimate) {
	sort.SliceStable(replicas, func(i, j int) bool { return replicas[i].tokenPace.value < replicas[j].tokenPace.value })
	for len(replicas) > 0 {
		n, sum := 1, replicas[0].tokenPace.value
		for n < len(replicas) && replicas[n].tokenPace.value <= maxSameHardwareRatio*replicas[n-1].tokenPace.value {
			sum += replicas[n].tokenPace.value
			n++
		}
		for _, l := range replicas[:n] {
			l.hardware = sum / float64(n)
		}
		replicas = replicas[n:]
	}
}

// SameHardware reports whether two paces are taken for the same hardware's.
func SameHardware(a, b float64) bool { return a <= maxSameHardwareRatio*b && b <= maxSameHardwareRatio*a }
