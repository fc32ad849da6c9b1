package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"skyserve/forecast"
	"skyserve/internal/printable"
)

// Backlog is deferred load that is already accepted: the requests of a batch for one model that have no result yet.
type Backlog struct {
	Batch string // its id
	Model string // name or alias
	// Tokens is the number of prompt tokens, cached ones included.
	Tokens   float64
	Deadline time.Time
}

const (
	// backlogHorizon is the time over which a backlog is spread: a day contains the hours of lowest load. If the
	// deadline of a batch is later, only one day's share of the batch is planned for.
	backlogHorizon = 24 * time.Hour
	// backlogStep is the length of a step after the horizon of the plan. The exact minute does not matter there.
	backlogStep = 15 * time.Minute
)

// backlogSlot is a time in a region in which a backlog can run.
type backlogSlot struct {
	region, minute int // minute is -1 after the horizon of the plan
	from, until    time.Duration
	// relativeLoad is the load minus the highest load of the region, so at most 0. maxAdded is the load that the maxima
	// allow to add, added what is added. All are uncached prompt tokens per second.
	relativeLoad, maxAdded, added float64
}

// addBacklog adds the accepted batches to problem.LoadTPS, the one with the earliest deadline first. Each is placed
// where the load of the model is furthest below the region's own peak. If that is not enough, all peaks rise by the same
// amount. Load above the maxima is not planned for; an assumption states how much. SageServe (section 6.2) runs deferred
// requests at times of low load; addBacklog makes the plan provide the capacity for this.
func (r *review) addBacklog(f forecast.Forecaster, all []*traffic) error {
	if len(r.options.Backlog) == 0 {
		return nil
	}
	for _, rows := range r.problem.LoadTPS {
		kept := make([][]float64, len(rows))
		for j := range rows {
			kept[j] = slices.Clone(rows[j])
		}
		r.withoutBacklog = append(r.withoutBacklog, kept)
	}
	byModel := make([][]Backlog, len(r.problem.Models))
	for _, b := range r.options.Backlog {
		if i := r.modelIndex(b.Model); i >= 0 && b.Tokens > 0 {
			byModel[i] = append(byModel[i], b)
		} else if i < 0 {
			r.assume("the service has no model %s: the backlog of batches for it is ignored", b.Model)
		}
	}
	for i, batches := range byModel {
		if len(batches) == 0 {
			continue
		}
		slices.SortFunc(batches, func(a, b Backlog) int {
			return cmp.Or(a.Deadline.Compare(b.Deadline), cmp.Compare(a.Batch, b.Batch))
		})
		last := min(batches[len(batches)-1].Deadline.Sub(r.at), backlogHorizon)
		slots, err := r.backlogSlots(f, all, i, last)
		if err != nil {
			return err
		}
		r.placeBacklog(i, batches, slots)
	}
	return nil
}

// backlogSlots returns the slots of a model until some time after the review.
func (r *review) backlogSlots(f forecast.Forecaster, all []*traffic, i int, until time.Duration) ([]backlogSlot, error) {
	var slots []backlogSlot
	for _, t := range all {
		limit := r.maxThroughput(i, t.region)
		if t.model != i || limit <= 0 {
			continue
		}
		loads := r.problem.LoadTPS[i][t.region]
		peak, first := slices.Max(loads), len(slots)
		add := func(minute int, from, length time.Duration, load float64) {
			peak = max(peak, load)
			slots = append(slots, backlogSlot{region: t.region, minute: minute, from: from, until: from + length, relativeLoad: load, maxAdded: max(0, limit-load)})
		}
		for w, load := range loads {
			add(w, time.Duration(w)*time.Minute, time.Minute, load)
		}
		later, err := r.laterLoad(f, t, until)
		if err != nil {
			return nil, err
		}
		for at, load := range later {
			add(-1, r.options.Horizon+time.Duration(at)*backlogStep, backlogStep, load)
		}
		for c := range slots[first:] {
			slots[first+c].relativeLoad -= peak
		}
	}
	return slots, nil
}

// laterLoad returns the expected load after the horizon of the plan, in steps of backlogStep. If the history is too
// short for such steps, it is the mean load of the horizon.
func (r *review) laterLoad(f forecast.Forecaster, t *traffic, until time.Duration) ([]float64, error) {
	if until <= r.options.Horizon {
		return nil, nil
	}
	skip := int(r.options.Horizon / backlogStep)
	steps := int((until + backlogStep - 1) / backlogStep)
	s := inSteps(t.start, t.interactive, int(backlogStep/time.Minute))
	if s.Step != backlogStep || allUnknown(s.Values) {
		sum := 0.0
		loads := r.problem.LoadTPS[t.model][t.region]
		for _, v := range loads {
			sum += v
		}
		return slices.Repeat([]float64{sum / float64(len(loads))}, steps-skip), nil
	}
	fc, err := f.Forecast(s, steps)
	if err != nil {
		return nil, err
	}
	var later []float64
	for _, v := range fc.Mean[skip:] {
		later = append(later, max(0, v/backlogStep.Seconds()))
	}
	return later, nil
}

// maxThroughput returns an upper bound of the throughput of a model in a region: as many replicas as capacity and max
// allow, each on the GPU with the highest throughput.
func (r *review) maxThroughput(i, j int) float64 {
	best, replicas := 0.0, 0.0
	for k, tps := range r.problem.ReplicaTPS[i] {
		available := math.Inf(1)
		if r.problem.Capacity != nil && r.problem.Capacity[j][k] != nil {
			available = float64(*r.problem.Capacity[j][k])
		}
		if available > 0 {
			best = max(best, tps)
		}
		if tps > 0 {
			replicas += available
		}
	}
	if limit := r.problem.Max[i][j]; limit != nil {
		replicas = min(replicas, float64(*limit))
	}
	if math.IsInf(replicas, 1) {
		return math.Inf(1)
	}
	return replicas * best
}

// placeBacklog adds batches to the slots and to problem.LoadTPS, and reports them.
func (r *review) placeBacklog(i int, batches []Backlog, slots []backlogSlot) {
	total, uncached := 0.0, r.uncachedShare(i)
	for _, b := range batches {
		left := b.Deadline.Sub(r.at)
		tokens := b.Tokens * uncached
		total += tokens
		if left > backlogHorizon {
			tokens *= float64(backlogHorizon) / float64(left)
		}
		if rest := fillValleys(slots, left, tokens); rest > 0.01*tokens {
			r.assume("%s cannot be completed by %s: replicas.max or the capacity of the regions of %s is too low for %s of its uncached prompt tokens", b.Batch, b.Deadline.UTC().Format(time.RFC3339), r.problem.Models[i], roundedTokens(rest))
		}
	}
	inHorizon := 0.0
	for _, c := range slots {
		if c.minute >= 0 {
			r.problem.LoadTPS[i][c.region][c.minute] += c.added
			inHorizon += c.added * 60
		}
	}
	r.assume("%s: includes the backlog of %s, %s uncached prompt tokens, of which %s run within %s; next deadline %s", r.problem.Models[i], printable.Count(len(batches), "batch"), roundedTokens(total), roundedTokens(inHorizon), forecast.ShortDuration(r.options.Horizon), batches[0].Deadline.UTC().Format(time.RFC3339))
}

// roundedTokens formats a number of tokens with two digits.
func roundedTokens(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.2gM", n/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.2gk", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}

// fillValleys adds tokens to the slots that end within a time, so that the highest resulting load is as low as possible
// (water-filling). It returns the tokens that exceed the maxima.
func fillValleys(slots []backlogSlot, within time.Duration, tokens float64) (rest float64) {
	var usable []*backlogSlot
	for c := range slots {
		if slots[c].until <= max(within, slots[0].until) { // work whose deadline is past or within a minute goes into the first minute
			usable = append(usable, &slots[c])
		}
	}
	// fits returns how much can be added to a slot until its relative load reaches a level.
	fits := func(c *backlogSlot, level float64) float64 {
		return min(max(0, level-c.relativeLoad-c.added), c.maxAdded-c.added)
	}
	filled := func(level float64) (sum float64) {
		for _, c := range usable {
			sum += fits(c, level) * (c.until - c.from).Seconds()
		}
		return sum
	}
	low, high := 0.0, 1.0
	for _, c := range usable {
		low = min(low, c.relativeLoad)
	}
	for filled(high) < tokens && high < 1e12 {
		high *= 2
	}
	for range 100 {
		if middle := (low + high) / 2; filled(middle) < tokens {
			low = middle
		} else {
			high = middle
		}
	}
	rest = max(0, tokens-filled(high))
	for _, c := range usable {
		c.added += fits(c, high)
	}
	return rest
}

// dropBacklog removes the backlog from the problem.
func (r *review) dropBacklog() {
	r.problem.LoadTPS, r.withoutBacklog = r.withoutBacklog, nil
	r.loadCurves = slices.Clone(r.loadCurves)
	for at := range r.loadCurves {
		c := &r.loadCurves[at]
		c.Planned = r.problem.LoadTPS[r.modelIndex(c.Model)][slices.Index(r.problem.Regions, c.Region)]
	}
	r.assume("the plan does not include the backlog of batches: with it, no plan satisfies the constraints")
}
