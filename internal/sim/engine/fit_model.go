package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// stepModel is a model fitted to measurements, with times in seconds.
type stepModel struct {
	prefill []point // over tokens
	decode  []point // over requests, without the time for their context
	perKV   float64 // per token of context
}

// point is a time y at a size x with a weight.
type point struct{ x, y, weight float64 }

// gridPoint aggregates the repetitions of one run.
type gridPoint struct {
	prompt, batch, output int
	runs                  float64
	prefill               float64 // median in seconds; 0 = unknown
	step, context         float64 // medians in seconds and tokens; step 0 = unknown
	steps                 float64
}

func (g *gridPoint) tokens() float64 { return float64(g.prompt * g.batch) }

// grid aggregates repetitions by their medians, in order of batch, prompt, output.
func grid(ms []Measurement) []gridPoint {
	ms = slices.Clone(ms)
	order := func(a, b Measurement) int {
		return cmp.Or(cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.PromptTokens, b.PromptTokens), cmp.Compare(a.OutputTokens, b.OutputTokens))
	}
	slices.SortStableFunc(ms, order)
	var points []gridPoint
	for from := 0; from < len(ms); {
		to := from + 1
		for to < len(ms) && order(ms[from], ms[to]) == 0 {
			to++
		}
		points = append(points, joined(ms[from:to]))
		from = to
	}
	return points
}

func joined(ms []Measurement) gridPoint {
	g := gridPoint{prompt: ms[0].PromptTokens, batch: ms[0].Batch, output: ms[0].OutputTokens, runs: float64(len(ms))}
	var times, contexts, steps []float64
	for i := range ms {
		if ms[i].Steps > 0 {
			times, contexts = append(times, ms[i].StepTime.Seconds()), append(contexts, ms[i].context())
			steps = append(steps, float64(ms[i].Steps))
		}
	}
	g.prefill, g.step, g.context, g.steps = median(prefillsOf(ms)), median(times), median(contexts), median(steps)
	return g
}

// fitModel fits both kinds of step. It fails if fewer than two sizes of one kind were measured, since
// the slope would be a guess.
func fitModel(ms []Measurement) (*stepModel, error) {
	points := grid(ms)
	m := &stepModel{prefill: prefillPoints(points)}
	if len(m.prefill) < 2 {
		return nil, fmt.Errorf("must contain prefills of at least 2 sizes (prompt_size x batch_size), got %s", sizes(m.prefill))
	}
	m.perKV = contextSlope(points)
	var decode []point
	for i := range points {
		if g := &points[i]; g.step > 0 {
			decode = append(decode, point{float64(g.batch), g.step - m.perKV*g.context, g.runs})
		}
	}
	if m.decode = nonDecreasing(decode); len(m.decode) < 2 {
		return nil, fmt.Errorf("must contain decodes of at least 2 batch sizes, got %s", sizes(m.decode))
	}
	if m.decode[0].y <= 0 {
		return nil, errors.New("decode times increase too steeply with the context, leaving no time for the weights: measure more contexts with one batch size")
	}
	return m, nil
}

// sizes formats the sizes of points.
func sizes(points []point) string {
	if len(points) == 0 {
		return "none"
	}
	return fmt.Sprintf("only %g", points[0].x)
}

// prefillPoints aggregates prefills with the same number of tokens, as one prompt or several, by the
// geometric mean, which has the same ratio to both.
func prefillPoints(points []gridPoint) []point {
	var logs []point
	for i := range points {
		if g := &points[i]; g.prefill > 0 {
			logs = append(logs, point{g.tokens(), math.Log(g.prefill), g.runs})
		}
	}
	logs = nonDecreasing(logs)
	for i := range logs {
		logs[i].y = math.Exp(logs[i].y)
	}
	return logs
}

// contextSlope returns the additional time of a decode step per token of context: the median slope
// between any two points of one batch size, weighted by their distance. It is 0 if every batch was
// measured with a single context.
func contextSlope(points []gridPoint) float64 {
	var slopes []point
	for i := range points {
		for k := range i {
			a, b := &points[k], &points[i]
			if far := math.Abs(b.context - a.context); a.batch == b.batch && far >= 1 && a.step > 0 && b.step > 0 {
				slopes = append(slopes, point{(b.step - a.step) / (b.context - a.context), 0, far})
			}
		}
	}
	slices.SortStableFunc(slopes, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	total := 0.0
	for _, s := range slopes {
		total += s.weight
	}
	below := 0.0
	for _, s := range slopes {
		if below += s.weight; below >= total/2 {
			return max(0, s.x)
		}
	}
	return 0
}

// nonDecreasing converts points to a curve: points of equal size are averaged, and times that decrease with
// the size are replaced by the mean of the conflicting neighbours, the nearest non-decreasing curve in
// least squares (pool adjacent violators).
func nonDecreasing(points []point) []point {
	slices.SortFunc(points, func(a, b point) int { return cmp.Or(cmp.Compare(a.x, b.x), cmp.Compare(a.y, b.y)) })
	type block struct {
		point
		xs []float64
	}
	var blocks []block
	for _, p := range points {
		if n := len(blocks); n > 0 && blocks[n-1].x == p.x {
			blocks[n-1].point = pooled(blocks[n-1].point, p)
		} else {
			blocks = append(blocks, block{p, []float64{p.x}})
		}
	}
	// A pooled block may conflict with the one before it.
	for i := 1; i < len(blocks); {
		if blocks[i].y >= blocks[i-1].y {
			i++
			continue
		}
		blocks[i-1] = block{pooled(blocks[i-1].point, blocks[i].point), append(blocks[i-1].xs, blocks[i].xs...)}
		blocks = slices.Delete(blocks, i, i+1)
		i = max(1, i-1)
	}
	var out []point
	for _, b := range blocks {
		for _, x := range b.xs {
			out = append(out, point{x, b.y, b.weight / float64(len(b.xs))})
		}
	}
	return out
}

// pooled returns the weighted mean of two points, at the size of the first.
func pooled(a, b point) point {
	w := a.weight + b.weight
	return point{a.x, (a.y*a.weight + b.y*b.weight) / w, w}
}

// curves converts the model to profile constants; times are rounded to microseconds, the context's to
// nanoseconds.
func (m *stepModel) curves() (prefill, decode Curve, perKV time.Duration) {
	return curveOf(m.prefill), curveOf(m.decode), time.Duration(math.Round(m.perKV * 1e9))
}

func curveOf(points []point) (c Curve) {
	for _, p := range points {
		c = append(c, Knot{int(p.x), max(time.Microsecond, time.Duration(math.Round(p.y*1e6))*time.Microsecond)})
	}
	return c
}

// prefillAt and decodeAt predict the seconds of a step.
func (m *stepModel) prefillAt(tokens float64) float64 { return interpolate(m.prefill, tokens) }

func (m *stepModel) decodeAt(batch, context float64) float64 {
	return interpolate(m.decode, batch) + m.perKV*context
}

// interpolate is Curve.at for points; there is at least one.
func interpolate(points []point, x float64) float64 {
	if x <= points[0].x || len(points) == 1 {
		return points[0].y
	}
	i := 0
	for i+2 < len(points) && points[i+1].x <= x {
		i++
	}
	a, b := points[i], points[i+1]
	return a.y + (b.y-a.y)*(x-a.x)/(b.x-a.x)
}

func mean(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// median returns the median of values; 0 if there are none.
func median(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Clone(xs)
	slices.Sort(xs)
	return (xs[len(xs)/2] + xs[(len(xs)-1)/2]) / 2
}
