package engine

import (
	"math"
	"slices"
)

// folds is the number of parts of the repetitions held out in turn: one in five, SageServe's 80:20.
const folds = 5

// residuals collects relative errors by predicted quantity.
type residuals struct{ prefill, inChunk, decode, whole []float64 }

func (r *residuals) sum() FitErrors {
	return FitErrors{Prefill: sumErrors(r.prefill), PrefillInChunk: sumErrors(r.inChunk), Decode: sumErrors(r.decode), Whole: sumErrors(r.whole)}
}

func sumErrors(errors []float64) Errors {
	return Errors{N: len(errors), Mean: mean(errors), Median: median(errors)}
}

// repetitionNoise compares each run with the median of its repetitions, a floor for the error of every
// model.
func repetitionNoise(ms []Measurement, chunk int) FitErrors {
	type place struct{ prompt, batch, output int }
	at := func(m *Measurement) place { return place{m.PromptTokens, m.Batch, m.OutputTokens} }
	runs := map[place][]Measurement{}
	for i := range ms {
		runs[at(&ms[i])] = append(runs[at(&ms[i])], ms[i])
	}
	var all residuals
	for i := range ms {
		same := runs[at(&ms[i])]
		k := slices.Index(same, ms[i])
		others := slices.Delete(slices.Clone(same), k, k+1)
		if len(others) == 0 {
			continue
		}
		g, o := joined(ms[i:i+1]), joined(others)
		m := &stepModel{prefill: []point{{g.tokens(), o.prefill, 1}}, decode: []point{{float64(g.batch), o.step, 1}}}
		all.addPrefill(m, &g, chunk)
		all.addDecode(m, &g)
	}
	return all.sum()
}

// addPrefill adds the error of a prefill prediction, if the prefill is known and within the measured
// range.
func (r *residuals) addPrefill(m *stepModel, g *gridPoint, chunk int) {
	if g.prefill == 0 || !within(m.prefill, g.tokens()) {
		return
	}
	e := math.Abs(m.prefillAt(g.tokens())/g.prefill - 1)
	r.prefill = append(r.prefill, e)
	if g.tokens() <= float64(chunk) {
		r.inChunk = append(r.inChunk, e)
	}
}

// addDecode adds the errors of a decode step and of the whole run, likewise.
func (r *residuals) addDecode(m *stepModel, g *gridPoint) {
	if g.step == 0 || !within(m.decode, float64(g.batch)) {
		return
	}
	step := m.decodeAt(float64(g.batch), g.context)
	r.decode = append(r.decode, math.Abs(step/g.step-1))
	if g.prefill > 0 && within(m.prefill, g.tokens()) {
		whole := m.prefillAt(g.tokens()) + g.steps*step
		r.whole = append(r.whole, math.Abs(whole/(g.prefill+g.steps*g.step)-1))
	}
}

// heldOutRuns holds out every fifth run of each grid point in turn.
func heldOutRuns(ms []Measurement, chunk int) FitErrors {
	type place struct{ prompt, batch, output int }
	runs := map[place]int{}
	fold := make([]int, len(ms))
	for i := range ms {
		at := place{ms[i].PromptTokens, ms[i].Batch, ms[i].OutputTokens}
		fold[i] = runs[at] % folds
		runs[at]++
	}
	var all residuals
	for out := range folds {
		var kept, held []Measurement
		for i := range ms {
			at := place{ms[i].PromptTokens, ms[i].Batch, ms[i].OutputTokens}
			if fold[i] == out && runs[at] > 1 {
				held = append(held, ms[i])
			} else {
				kept = append(kept, ms[i])
			}
		}
		m, err := fitModel(kept)
		if err != nil {
			continue // every point keeps a run, but the fit may still fail
		}
		for i := range held {
			g := joined(held[i : i+1])
			all.addPrefill(m, &g, chunk)
			all.addDecode(m, &g)
		}
	}
	return all.sum()
}

// heldOutPoints holds out each prompt and batch size in turn, with all its response lengths, and predicts
// it if the others enclose it.
func heldOutPoints(ms []Measurement, chunk int) FitErrors {
	type shape struct{ prompt, batch int }
	var shapes []shape
	seen := map[shape]bool{}
	for i := range ms {
		if s := (shape{ms[i].PromptTokens, ms[i].Batch}); !seen[s] {
			seen[s] = true
			shapes = append(shapes, s)
		}
	}
	var all residuals
	for _, s := range shapes {
		var kept, held []Measurement
		for i := range ms {
			if ms[i].PromptTokens == s.prompt && ms[i].Batch == s.batch {
				held = append(held, ms[i])
			} else {
				kept = append(kept, ms[i])
			}
		}
		m, err := fitModel(kept)
		if err != nil {
			continue // too little data is left to fit
		}
		whole := joined(held)
		all.addPrefill(m, &whole, chunk)
		points := grid(held)
		for i := range points {
			all.addDecode(m, &points[i])
		}
	}
	return all.sum()
}

func within(points []point, x float64) bool {
	return points[0].x <= x && x <= points[len(points)-1].x
}

// prefillsOf returns the known prefill times.
func prefillsOf(ms []Measurement) (seconds []float64) {
	for i := range ms {
		if took := ms[i].PrefillTime; took > 0 {
			seconds = append(seconds, took.Seconds())
		}
	}
	return seconds
}
