package eval

import (
	"fmt"
	"math"
	"time"
)

// leastStays is how few requests a record must have for its constants to mean
// something: four in five are fitted to, one in five checks.
const leastStays = 50

// rounds is how often lanes are laid out again by the timing that the last
// layout gave: from the second on little changes.
const rounds = 8

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

// whyLost says what a record must have for each unknown.
var whyLost = [unknowns]string{
	byStep:         "decode_base: no request had a second token",
	byRequest:      "decode_per_request: requests that ran beside different numbers of others",
	byContext:      "decode_per_kv_token: requests whose prompts are of different lengths",
	byPrefill:      "prefill_base: requests that came while others were answered, or alone",
	byPrefillToken: "prefill_per_token: requests with different numbers of uncached prompt tokens",
	byFirstToken:   "what a first token takes beside its prefill: requests that came alone",
}

// recordFit is the timing that a record's stays give.
type recordFit struct {
	timing
	used, held int
	most       float64   // context of all that ran at once at a replica
	ttft, tpot []float64 // absolute relative errors of those held out
}

// fitStays fits a timing to the stays of one model.
//
// The time between a request's first token and its last is that of its decode
// steps, each with the requests and the context that were there, and of the prefill
// steps of others that came between: linear in the constants. Who was there is
// known from the balancer's own counts. How the steps lie in that time depends
// on the constants in turn, so lanes are laid out and fitted to by turns. The first
// tokens of requests that came alone tell what they take beside their prefill:
// the wire and the balancer.
func fitStays(all []*stay, chunk int) (*recordFit, error) {
	f := &recordFit{}
	var whole []*stay
	for _, s := range all {
		if s.whole && s.end > s.first && s.output > 1 && s.first > s.sent {
			whole = append(whole, s)
		}
	}
	if len(whole) < leastStays {
		return nil, fmt.Errorf("want at least %d requests that were answered with 2 tokens or more and whose tokens the engine counted, got %d of %d", leastStays, len(whole), len(all))
	}
	fitted, held := splitStays(whole)
	f.used, f.held = len(fitted), len(held)
	pace := medianPace(fitted)
	f.timing = timing{decodeBase: pace}
	ls := lanes(all)
	at := map[*stay]*lane{}
	for _, l := range ls {
		for _, s := range l.stays {
			at[s] = l
		}
	}
	for range rounds {
		for _, l := range ls {
			// Two prefill steps lie further apart than a quarter of a decode step: each
			// reads the weights, as that does.
			l.lay(&f.timing, pace/4, chunk)
		}
		if err := f.refit(fitted, at, chunk); err != nil {
			return nil, err
		}
	}
	for _, l := range ls {
		l.lay(&f.timing, pace/4, chunk)
		f.most = max(f.most, l.most)
	}
	for _, s := range held {
		f.check(s, at[s])
	}
	return f, nil
}

// splitStays holds one in five out.
func splitStays(whole []*stay) (fitted, held []*stay) {
	for i, s := range whole {
		if i%5 == 4 {
			held = append(held, s)
		} else {
			fitted = append(fitted, s)
		}
	}
	return fitted, held
}

// medianPace is the time between two tokens in the middle of requests.
func medianPace(whole []*stay) float64 {
	var paces []float64
	for _, s := range whole {
		paces = append(paces, s.decode().Seconds()/float64(s.output-1))
	}
	return medianOf(paces)
}

// refit finds the constants for the lanes as they lie.
func (f *recordFit) refit(fitted []*stay, at map[*stay]*lane, chunk int) error {
	var equations []equation
	stalled, alone := false, false
	for _, s := range fitted {
		c := decodeColumns(s, at[s])
		stalled = stalled || c[byPrefill] > 0
		equations = append(equations, equation{c, s.decode().Seconds()})
	}
	for _, s := range fitted {
		if !at[s].at[s].alone {
			continue
		}
		c := make([]float64, unknowns)
		c[byPrefill] = math.Ceil(float64(s.uncached()) / float64(chunk))
		c[byPrefillToken] = float64(s.uncached())
		if stalled { // else the engine's share cannot be told from the rest
			c[byFirstToken], alone = 1, true
		}
		equations = append(equations, equation{c, (s.first - s.sent).Seconds()})
	}
	n := unknowns
	if !alone {
		n-- // byFirstToken is the last
	}
	x, lost := solveRelative(equations, n)
	if len(lost) > 0 {
		return fmt.Errorf("the record does not tell all constants: it lacks, for %s", whyLost[lost[0]])
	}
	f.timing = timing{
		decodeBase: x[byStep], decodePerRequest: x[byRequest], decodePerKV: x[byContext],
		prefillBase: x[byPrefill], prefillPerToken: x[byPrefillToken],
	}
	if n == unknowns {
		f.overhead = x[byFirstToken]
	}
	if f.decodeBase <= 0 {
		return fmt.Errorf("the record does not tell all constants: what decode steps took grows with their requests and context alone, so none is left for decode_base; it lacks requests that ran beside few others")
	}
	return nil
}

// decodeColumns are what lay between a stay's first token and its end. The steps
// are known, one a token; the layout says what was in them.
func decodeColumns(s *stay, l *lane) []float64 {
	at := l.at[s]
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
	return c
}

// check compares a stay that was held out with what its constants predict beside
// those that were there.
func (f *recordFit) check(s *stay, l *lane) {
	columns := decodeColumns(s, l)[:byFirstToken]
	x := []float64{f.decodeBase, f.decodePerRequest, f.decodePerKV, f.prefillBase, f.prefillPerToken}
	f.tpot = append(f.tpot, math.Abs(predict(columns, x)/s.decode().Seconds()-1))
	if took, waited := f.firstToken(s, l); !waited {
		f.ttft = append(f.ttft, math.Abs(took/(s.first-s.sent).Seconds()-1))
	}
}

// firstToken predicts how long a first token takes: half a decode step where one
// was under way, since a balancer does not see how far it was, and the prefill
// steps that ended from then on, the last one its own. A request for which two
// decode steps or more were done before that waited for room in the engine's
// memory: how long is not up to the time of a step.
func (f *recordFit) firstToken(s *stay, l *lane) (took float64, waited bool) {
	sent, first := s.sent.Seconds(), s.first.Seconds()
	prefill := 0.0
	for i := l.at[s].step; i >= 0 && l.prefills[i].end > sent; i-- {
		p := l.prefills[i]
		prefill += min(f.prefill(p.steps, p.tokens), p.end-sent)
	}
	took = f.overhead + prefill
	if at := l.at[s]; at.running > 0 && first-sent > prefill {
		step := f.decode(at.running, at.context)
		return took + step/2, first-sent > took+2*step
	}
	return took, false
}

// scaleStays takes a record's times as those of an engine that is speed times slower.
func scaleStays(all []*stay, speed float64) {
	for _, s := range all {
		for _, at := range []*time.Duration{&s.sent, &s.first, &s.end} {
			*at = time.Duration(float64(*at) * speed)
		}
	}
}
