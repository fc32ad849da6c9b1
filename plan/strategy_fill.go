package plan

import (
	"math"
	"time"
)

// DefaultMaxLateShare is the default share of first tokens that may be late: SageServe's targets apply to
// the 95th percentile (section 2.2).
const DefaultMaxLateShare = 0.05

// Parameters of auto's fill level, tuned on Monday to Wednesday of a generated week and of
// SageServe's published week.
const (
	// fillGain is the increase of the fill level, as a logarithm, after an hour of the usual
	// traffic in which no first token was late.
	fillGain = 0.05
	// lateAim is the part of the allowed late share that the level aims at: a day's share varies around the aim,
	// and the limit is for every day.
	lateAim = 0.6
	// minFill and maxFill bound the level: lateness with causes other than load must not add
	// replicas without end.
	minFill = 0.7
	maxFill = 1.4
	// maxRateJump bounds the rise of the usual traffic per step: the counts of a balancer that
	// reconnects arrive all at once.
	maxRateJump = 10
	// minFirstTokens is the number of first tokens from which their rate is known well enough to weigh them. If
	// there are fewer, update waits for others, at most maxLearningWait: one first token in a short step is no peak.
	minFirstTokens  = 5
	maxLearningWait = 1 // hours
)

// fillLevel is the fill level of a model's replicas: their load as a multiple of their nominal throughput (see
// factor), learned from late first tokens. Each late one lowers it; each one in time raises it, by an amount at which both balance at the target share. Over
// time the late share converges to the target, whatever the load, the model or the lengths of its
// requests (the rule of adaptive conformal inference, Gibbs and Candès 2021). The weight of one first
// token falls with the usual rate, so that small and large models learn equally fast.
type fillLevel struct {
	targetLateShare float64       // the late share that the level aims at
	at              time.Duration // of the last update
	pending         FirstTokens   // not processed yet
	pendingHours    float64       // in which they arrived
	usualRate       float64       // first tokens per hour, over the last hours; 0 = none so far
	logFactor       float64       // natural logarithm of factor()
}

// factor returns the load per replica as a multiple of its nominal throughput.
func (l *fillLevel) factor() float64 { return math.Exp(l.logFactor) }

// update processes the first tokens since the previous step. How often it is called does not matter.
func (l *fillLevel) update(now time.Duration, arrived FirstTokens) {
	step := (now - l.at).Hours()
	if step <= 0 {
		return
	}
	l.at = now
	l.pending = FirstTokens{l.pending.Total + arrived.Total, l.pending.Late + arrived.Late}
	l.pendingHours += step
	if l.pending.Total < minFirstTokens && l.pendingHours < maxLearningWait {
		return
	}
	hours := l.pendingHours
	arrived, l.pending, l.pendingHours = l.pending, FirstTokens{}, 0
	rate := float64(arrived.Total) / hours
	if l.usualRate == 0 {
		l.usualRate = rate
	}
	l.usualRate += (min(rate, maxRateJump*l.usualRate) - l.usualRate) * -math.Expm1(-hours)
	if l.usualRate > 0 {
		l.logFactor += fillGain * (float64(arrived.Total) - float64(arrived.Late)/l.targetLateShare) / max(l.usualRate, rate)
		l.logFactor = min(max(l.logFactor, math.Log(minFill)), math.Log(maxFill))
	}
}

// since returns the difference to an earlier count, zero after a reset.
func (n FirstTokens) since(before FirstTokens) FirstTokens {
	if n.Total < before.Total || n.Late < before.Late {
		return FirstTokens{}
	}
	return FirstTokens{n.Total - before.Total, n.Late - before.Late}
}
