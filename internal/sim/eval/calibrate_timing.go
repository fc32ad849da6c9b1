package eval

import (
	"fmt"
	"math"
	"time"
)

// minAttempts is the minimum number of requests for a meaningful fit: four in five are fitted, one in
// five is held out.
const minAttempts = 50

// fitRounds is the number of times that timelines are computed again with the previous timing. The result
// changes little after the second.
const fitRounds = 8

// The unknowns of a fit.
const (
	byStep = iota
	byRequest
	byContext
	byPrefill
	byPrefillToken
	byFirstToken
	unknowns
)

// missingData states what a record must contain to determine each unknown.
var missingData = [unknowns]string{
	byStep:         "decode_base: requests with two output tokens or more",
	byRequest:      "decode_per_request: requests that ran with different numbers of other requests",
	byContext:      "decode_per_kv_token: requests with prompts of different lengths",
	byPrefill:      "prefill_base: requests that arrived while others were running, or alone",
	byPrefillToken: "prefill_per_token: requests with different numbers of uncached prompt tokens",
	byFirstToken:   "first-token overhead: requests that arrived alone",
}

// recordFit is a timing fitted to a record.
type recordFit struct {
	timing
	fitted, heldOut int
	maxContext      float64   // maximum context that ran at once at a replica
	ttft, tpot      []float64 // absolute relative errors on held-out requests
	// ttftError and tpotError are the means of these errors on the fitted requests; NaN = there are none, because all
	// requests waited.
	ttftError, tpotError float64
	other                *recordFit // of the other kind of engine, with or without mixed steps; nil if the record determines none
}

// fitAttempts fits a timing to the attempts of one model.
//
// The time between a request's first token and its last consists of its decode steps, each with the
// requests and context running then, and of the prefill steps of other requests in between. It is
// linear in the constants. The requests running at each time follow from the balancer's own
// counts. The position of the steps depends on the constants, so the fit alternates between
// computing timelines and solving. The first tokens of requests that arrived alone
// determine the overhead besides their prefill: the network and the balancer.
//
// In an engine with mixed steps, running requests get a token in each prefill step. The record does not contain the
// kind of engine: fitAttempts fits both, and returns the likelier one.
func fitAttempts(all []*attempt, chunk int) (*recordFit, error) {
	var whole []*attempt
	for _, s := range all {
		if s.usable && s.end > s.first && s.output > 1 && s.first > s.sent {
			whole = append(whole, s)
		}
	}
	if len(whole) < minAttempts {
		return nil, fmt.Errorf("must contain at least %d requests with 2 output tokens or more and token counts from the engine, got %d of %d", minAttempts, len(whole), len(all))
	}
	fitted, held := splitAttempts(whole)
	var best, other *recordFit
	var firstErr error
	for _, mixed := range []bool{false, true} {
		f, timelineOf, err := fitTiming(all, fitted, chunk, mixed)
		if err != nil {
			if firstErr == nil {
				firstErr = err
			}
			continue
		}
		f.fitted, f.heldOut = len(fitted), len(held)
		for _, s := range held {
			f.checkAttempt(s, timelineOf[s])
		}
		if best == nil || f.likelier(best) {
			f, best = best, f
		}
		other = f
	}
	if best == nil {
		return nil, firstErr
	}
	best.other = other
	return best, nil
}

// likelier reports whether a fit explains the fitted requests better than another. The standard deviations of both times
// are unknown, so the lower product of the errors is likelier. Without first tokens to compare, decode times decide.
func (f *recordFit) likelier(than *recordFit) bool {
	if math.IsNaN(f.ttftError) || math.IsNaN(than.ttftError) {
		return f.tpotError < than.tpotError
	}
	return f.ttftError*f.tpotError < than.ttftError*than.tpotError
}

// fitTiming fits one kind of engine to the attempts fitted. It also returns the timeline of each of all attempts.
func fitTiming(all, fitted []*attempt, chunk int, mixed bool) (*recordFit, map[*attempt]*timeline, error) {
	pace := medianPace(fitted)
	f := &recordFit{timing: timing{decodeBase: pace, mixed: mixed}}
	ls := timelines(all)
	at := map[*attempt]*timeline{}
	for _, l := range ls {
		for _, s := range l.attempts {
			at[s] = l
		}
	}
	for range fitRounds {
		for _, l := range ls {
			// Two prefill steps are further apart than a quarter of a decode step: each reads the weights,
			// as a decode step does.
			l.compute(&f.timing, pace/4, chunk)
		}
		if err := f.refit(fitted, at, chunk); err != nil {
			return nil, nil, err
		}
	}
	for _, l := range ls {
		l.compute(&f.timing, pace/4, chunk)
		f.maxContext = max(f.maxContext, l.maxContext)
	}
	var check recordFit
	check.timing = f.timing
	for _, s := range fitted {
		check.checkAttempt(s, at[s])
	}
	f.ttftError, f.tpotError = math.NaN(), mean(check.tpot)
	if len(check.ttft) > 0 {
		f.ttftError = mean(check.ttft)
	}
	return f, at, nil
}

// splitAttempts holds out one in five.
func splitAttempts(whole []*attempt) (fitted, held []*attempt) {
	for i, s := range whole {
		if i%5 == 4 {
			held = append(held, s)
		} else {
			fitted = append(fitted, s)
		}
	}
	return fitted, held
}

// medianPace returns the median over requests of the time between two tokens.
func medianPace(whole []*attempt) float64 {
	var paces []float64
	for _, s := range whole {
		paces = append(paces, s.decode().Seconds()/float64(s.output-1))
	}
	return medianOf(paces)
}

// refit solves for the constants with the current timelines.
func (f *recordFit) refit(fitted []*attempt, at map[*attempt]*timeline, chunk int) error {
	var equations []equation
	stalled, alone := false, false
	for _, s := range fitted {
		c := f.decodeColumns(s, at[s])
		stalled = stalled || c[byPrefill] > 0
		equations = append(equations, equation{c, s.decode().Seconds()})
	}
	for _, s := range fitted {
		if !at[s].positions[s].alone {
			continue
		}
		c := make([]float64, unknowns)
		c[byPrefill] = math.Ceil(float64(s.uncached()) / float64(chunk))
		c[byPrefillToken] = float64(s.uncached())
		if stalled { // otherwise the overhead cannot be separated from the engine's time
			c[byFirstToken], alone = 1, true
		}
		equations = append(equations, equation{c, (s.first - s.sent).Seconds()})
	}
	n := unknowns
	if !alone {
		n-- // byFirstToken is the last unknown
	}
	x, lost := solveRelative(equations, n)
	if len(lost) > 0 {
		return fmt.Errorf("the record does not determine all constants: missing for %s", missingData[lost[0]])
	}
	f.timing = timing{
		mixed:      f.mixed,
		decodeBase: x[byStep], decodePerRequest: x[byRequest], decodePerKV: x[byContext],
		prefillBase: x[byPrefill], prefillPerToken: x[byPrefillToken],
	}
	if n == unknowns {
		f.overhead = x[byFirstToken]
	}
	if f.decodeBase <= 0 {
		return fmt.Errorf("the record does not determine all constants: decode time is fully explained by requests and context, leaving none for decode_base; missing: requests that ran with few others")
	}
	return nil
}

// decodeColumns returns the columns for the time between an attempt's first token and its end. The number
// of steps is known, one per token; the timeline contains their requests.
func (m *timing) decodeColumns(s *attempt, l *timeline) []float64 {
	at := l.positions[s]
	between := at.end.minus(at.first)
	steps := float64(s.output - 1)
	c := make([]float64, unknowns)
	c[byStep] = steps
	if between.steps > 0 {
		c[byRequest] = between.requests * steps / between.steps
		c[byContext] = between.context * steps / between.steps
	} else {
		c[byRequest], c[byContext] = steps, steps*(float64(s.prompt)+1+(steps-1)/2)
	}
	c[byPrefill], c[byPrefillToken] = between.prefills, between.prefilled
	if m.mixed {
		c[byStep] = max(0, steps-between.prefills)
	}
	return c
}

// checkAttempt adds the errors of the predictions for a held-out attempt.
func (f *recordFit) checkAttempt(s *attempt, l *timeline) {
	columns := f.decodeColumns(s, l)[:byFirstToken]
	x := []float64{f.decodeBase, f.decodePerRequest, f.decodePerKV, f.prefillBase, f.prefillPerToken}
	f.tpot = append(f.tpot, math.Abs(predict(columns, x)/s.decode().Seconds()-1))
	if took, waited := f.firstToken(s, l); !waited {
		f.ttft = append(f.ttft, math.Abs(took/(s.first-s.sent).Seconds()-1))
	}
}

// firstToken predicts the time to a first token: half a decode step if one was in progress, since a
// balancer does not see its progress, plus the prefill steps that ended from then on, the last of them
// its own. A request for which two decode steps or more ran first waited for KV memory; the step times
// do not determine that wait.
func (f *recordFit) firstToken(s *attempt, l *timeline) (took float64, waited bool) {
	sent, first := s.sent.Seconds(), s.first.Seconds()
	own := l.positions[s].step
	prefill := f.stepTime(&l.prefills[own])
	for i := own - 1; i >= 0 && l.prefills[i].end > sent; i-- {
		p := &l.prefills[i]
		prefill += min(f.stepTime(p), p.end-sent) // it may have begun before
	}
	took = f.overhead + prefill
	if at := l.positions[s]; at.running > 0 && first-sent > prefill {
		step := f.decode(at.running, at.context)
		return took + step/2, first-sent > took+2*step
	}
	return took, false
}

// scaleAttempts converts a record's times to those of an engine that is speed times slower.
func scaleAttempts(all []*attempt, speed float64) {
	for _, s := range all {
		for _, at := range []*time.Duration{&s.sent, &s.first, &s.end} {
			*at = time.Duration(float64(*at) * speed)
		}
	}
}
