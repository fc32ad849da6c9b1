// Package pace estimates the speed of replicas from their responses. A pace is a duration at a
// replica divided by the corresponding duration at the nominal replica (lbd/policy). Replicas with
// similar paces are assumed to have the same hardware and share one pace.
package pace

import (
	"sort"
	"time"
)

const (
	// weight is the weight of each response in a mean.
	weight = 0.05
	// An answer is a measurement of a replica's speed only if it has at least minTokens tokens and was
	// streamed for at least minShare of its residence time. An answer that arrived in one piece is not.
	minTokens = 8
	minShare  = 0.1
	// maxSameHardwareRatio is the maximum ratio between two paces of replicas with the same
	// hardware, whose requests differ randomly.
	maxSameHardwareRatio = 1.25
	// Limit bounds a pace on both sides, so that a clock jump cannot distort it.
	Limit = 100
)

// Mean is a running mean (EWMA). The zero value has no data.
type Mean struct {
	value float64
	known bool
}

// Add adds a value with a weight.
func (m *Mean) Add(v, weight float64) {
	if !m.known {
		m.value, m.known = v, true
		return
	}
	m.value += weight * (v - m.value)
}

// Or returns the mean, or fallback if there is no data.
func (m *Mean) Or(fallback float64) float64 {
	if m.known {
		return m.value
	}
	return fallback
}

// Estimate is the estimated speed of one replica. The zero value has no data.
type Estimate struct {
	streamed, nominal Mean    // durations, in seconds, of streamed answers: see LearnStream
	tokenPace         Mean    // pace of the time between two tokens of an answer
	hardware          float64 // pace of all replicas with this hardware; 0 = unknown
	residencePace     Mean    // pace of whole requests, from the send to the end
}

// Known reports whether token times of the replica were measured.
func (l *Estimate) Known() bool { return l.tokenPace.known }

// Value returns the pace of the replica's hardware; 1 if unknown.
func (l *Estimate) Value() float64 {
	if l.hardware == 0 {
		return 1
	}
	return l.hardware
}

// Hardware returns the pace of the replica's hardware; 0 before it was grouped with others.
func (l *Estimate) Hardware() float64 { return l.hardware }

// ResidencePace returns the pace of whole requests, or that of tokens if none was measured.
func (l *Estimate) ResidencePace() float64 { return l.residencePace.Or(l.Value()) }

// Informative reports whether an answer with a number of tokens, streamed for a part of its
// residence time, is a measurement of the token speed.
func Informative(tokens int, streamed, stay time.Duration) bool {
	return tokens >= minTokens && streamed > 0 && float64(streamed) >= minShare*float64(stay)
}

// LearnStream adds a measurement of the time for which an answer was streamed. nominal is the duration
// of the same work at the nominal replica: of the steps of the answer, and of the prompts computed in
// between. The pace is the ratio of the mean durations, because the ratio of a short answer varies much.
func (l *Estimate) LearnStream(streamed, nominal time.Duration) {
	l.streamed.Add(streamed.Seconds(), weight)
	l.nominal.Add(nominal.Seconds(), weight)
	l.tokenPace = Mean{bounded(l.streamed.value / l.nominal.value), true}
}

// LearnResidence adds a measurement of the residence time of a request, with its number of
// generated tokens.
func (l *Estimate) LearnResidence(tokens int, stay, nominal time.Duration) {
	if tokens >= minTokens && stay > 0 {
		l.residencePace.Add(bounded(stay.Seconds()/nominal.Seconds()), weight)
	}
}

func bounded(pace float64) float64 { return min(max(pace, 1.0/Limit), Limit) }

// Assume sets the pace of a replica without measurements.
func (l *Estimate) Assume(pace float64) { l.hardware = pace }

// Group sets the pace of each replica in a list to that of its hardware: the mean over a sequence
// of replicas, sorted by pace, in which neighbours differ by at most maxSameHardwareRatio. All of
// them must be Known. It sorts the list.
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

// SameHardware reports whether two paces are assumed to be of the same hardware.
func SameHardware(a, b float64) bool {
	return a <= maxSameHardwareRatio*b && b <= maxSameHardwareRatio*a
}
