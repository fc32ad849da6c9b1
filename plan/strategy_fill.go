package plan

import (
	"math"
	"time"
)

// DefaultLate is the share of first tokens that may be late: SageServe's targets are
// stated for the 95th percentile (section 2.2).
const DefaultLate = 0.05

// How auto learns how far to fill replicas; chosen on Monday to Wednesday of a
// generated week and of the published one.
const (
	// fillGain is by how much further, as a logarithm, replicas are filled after an
	// hour of the usual traffic in which no first token was late.
	fillGain = 0.05
	// fillLeast and fillMost bound it: what is late for other reasons than load must
	// not ask for replicas without end.
	fillLeast = 0.7
	fillMost  = 1.4
	// fillJump bounds by how many times the usual traffic a look may raise what counts
	// as usual: the counts of a balancer that is heard again come all at once.
	fillJump = 10
)

// filling is how far the replicas of a model are filled, learned from the first
// tokens that were late: each of them takes something off, each that was not adds as
// much as makes up for it at the share that may be late. Over time the share comes to
// that one, whatever the load, the model or its lengths do (the rule of adaptive
// conformal inference, Gibbs and Candès 2021). A first token counts the less the more
// of them are usual, so that small and large models learn equally fast.
type filling struct {
	late  float64 // the share that may be
	at    time.Duration
	usual float64 // first tokens an hour, over the last hours; 0 = none yet
	log   float64 // of the factor
}

// factor is how many times the load that a replica is said to carry it gets.
func (l *filling) factor() float64 { return math.Exp(l.log) }

// learn takes in the first tokens since the look before.
func (l *filling) learn(now time.Duration, came FirstTokens) {
	hours := (now - l.at).Hours()
	if hours <= 0 {
		return
	}
	l.at = now
	rate := float64(came.All) / hours
	if l.usual == 0 {
		l.usual = rate
	}
	l.usual += (min(rate, fillJump*l.usual) - l.usual) * -math.Expm1(-hours)
	if l.usual > 0 {
		l.log += fillGain * (float64(came.All) - float64(came.Late)/l.late) / max(l.usual, rate)
		l.log = min(max(l.log, math.Log(fillLeast)), math.Log(fillMost))
	}
}

// since is what came after an earlier count, nothing where the count began anew.
func (n FirstTokens) since(before FirstTokens) FirstTokens {
	if n.All < before.All || n.Late < before.Late {
		return FirstTokens{}
	}
	return FirstTokens{n.All - before.All, n.Late - before.Late}
}
