package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
)

// maxBacktestReviews bounds a backtest: 100 days of hourly reviews.
const maxBacktestReviews = 2400

// BacktestOptions configures a backtest; a zero field means its default.
type BacktestOptions struct {
	// From and To bound the replayed period. From defaults to a day and a horizon after the
	// history's first minute, or to its middle when the history is shorter than twice that; To
	// defaults to its end.
	From, To time.Time
	// Every is the time between two reviews; default the service's setting.
	Every time.Duration
	// Review are the options of each review.
	Review ReviewOptions
	// ActualCounts is the actual counts over time; empty = unknown.
	ActualCounts []ReplicaCountAt
}

// ReplicaCountAt is an actual count from a time on.
type ReplicaCountAt struct {
	At time.Time
	ReplicaCount
}

// Backtester creates a Backtest: call Forecast for every review, in any order and concurrently,
// then Report.
type Backtester struct {
	spec     *service.Spec
	history  *forecast.History
	options  BacktestOptions
	from, to int64 // minutes since 1970
	every    int64
	inputs   []*ReviewInputs
	ignored  []string // assumptions about actual counts that are not used
}

// NewBacktest prepares a backtest of a service's plans over a history. It fails on a period that
// the history does not cover.
func NewBacktest(spec *service.Spec, h *forecast.History, o BacktestOptions) (*Backtester, error) {
	o.Every = cmp.Or(o.Every, spec.Autoscale.Every, defaultPlanInterval)
	b := &Backtester{spec: spec, history: h, options: o, every: int64(o.Every / time.Minute)}
	b.options.Review.Horizon = cmp.Or(o.Review.Horizon, horizonOf(o.Every))
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("backtesting %s: "+format, append([]any{spec.Name}, args...)...)
	}
	switch {
	case b.every < 1 || o.Every%time.Minute != 0:
		return nil, wrong("every: must be whole minutes, at least 1m, got %s", o.Every)
	case h.Minutes < 2:
		return nil, wrong("history: must have at least 2 minutes, got %d; wait until it has more, or pass --history FILE", h.Minutes)
	}
	warm := 24*60 + int64(b.options.Review.Horizon/time.Minute) // the history that daily forecasts need
	b.from, b.to = h.First+warm, h.End()
	if int64(h.Minutes) < 2*warm {
		b.from = h.First + int64(h.Minutes)/2
	}
	if !o.From.IsZero() {
		b.from = o.From.Unix() / 60
	}
	if !o.To.IsZero() {
		b.to = o.To.Unix() / 60
	}
	switch {
	case b.from <= h.First || b.to > h.End() || b.from >= b.to:
		return nil, wrong("period %s to %s: must be within the history (after %s, until %s) and must not be empty",
			formatMinute(b.from), formatMinute(b.to), formatMinute(h.First), formatMinute(h.End()))
	case (b.to-b.from)/b.every > maxBacktestReviews:
		return nil, wrong("period %s to %s, every %s: must have at most %d plans", formatMinute(b.from), formatMinute(b.to), o.Every, maxBacktestReviews)
	}
	if err := b.resolveCounts(); err != nil {
		return nil, wrong("actual counts: %w", err)
	}
	b.inputs = make([]*ReviewInputs, (b.to-b.from+b.every-1)/b.every)
	return b, nil
}

// resolveCounts keeps the actual counts of the service, sorted by time, with the full names of their regions. It fails if
// there are none of the service, or none at the start.
func (b *Backtester) resolveCounts() error {
	if len(b.options.ActualCounts) == 0 {
		return nil
	}
	var r review
	r.setNames(b.spec)
	var counts []ReplicaCountAt
	for _, c := range b.options.ActualCounts {
		regions := r.regionsOf(c.Region)
		if r.modelIndex(c.Model) < 0 || len(regions) != 1 {
			r.assume("the service has no %s in %s: its actual counts are ignored", c.Model, c.Region)
			continue
		}
		c.Region = service.Region(r.problem.Regions[regions[0]])
		counts = append(counts, c)
	}
	slices.SortStableFunc(counts, func(x, y ReplicaCountAt) int { return x.At.Compare(y.At) })
	switch b.ignored = r.assumptions; {
	case len(counts) == 0:
		return errors.New(strings.Join(b.ignored, "; "))
	case counts[0].At.Unix()/60 > b.from:
		return fmt.Errorf("must be known at the start of the backtest, %s, got %s as the first time", formatMinute(b.from), counts[0].At.UTC().Format(time.RFC3339))
	}
	b.options.ActualCounts = counts
	return nil
}

func formatMinute(minute int64) string { return time.Unix(minute*60, 0).UTC().Format(time.RFC3339) }

// NumReviews returns the number of reviews.
func (b *Backtester) NumReviews() int { return len(b.inputs) }

// minuteOf returns the minute of a review.
func (b *Backtester) minuteOf(n int) int64 { return b.from + int64(n)*b.every }

// Forecast computes the inputs of review n from the history before its time.
func (b *Backtester) Forecast(n int) error {
	o, err := ForecastInputs(b.spec, b.history, time.Unix(b.minuteOf(n)*60, 0), b.options.Review)
	b.inputs[n] = o
	return err
}

// Report replays the plans, and the rules that they are compared with. It fails when a review has
// no forecast or cannot be solved.
func (b *Backtester) Report() (*Backtest, error) {
	if slices.Contains(b.inputs, nil) {
		return nil, fmt.Errorf("backtesting %s: some reviews have no forecast: call Forecast for each before Report", b.spec.Name)
	}
	first := b.inputs[0]
	past := b.loadTrace(first)
	out := &Backtest{
		Service: b.spec.Name, From: time.Unix(b.from*60, 0).UTC(), To: time.Unix(b.to*60, 0).UTC(), Every: forecast.ShortDuration(b.options.Every),
		Horizon: forecast.ShortDuration(first.options.Horizon), Forecaster: first.options.Forecaster, Rules: []RuleOutcome{}, Reviews: []BacktestStep{},
	}
	targets, err := b.solveReviews(out, past)
	if err != nil {
		return nil, err
	}
	rules := []struct {
		name    string
		targets []TargetCounts
	}{
		{RulePredictive, b.trackedTargets(past)},
		{RuleHourly, targets},
		{RuleConstant, []TargetCounts{{Counts: past.ConstantCounts()}}},
		{RuleThreshold, past.ThresholdCounts()},
		{RuleActual, b.actualCounts(first)},
	}
	for _, rule := range rules {
		if len(rule.targets) == 0 {
			continue
		}
		f, err := past.Replay(rule.name, rule.targets)
		if err != nil {
			return nil, fmt.Errorf("backtesting %s: %w", b.spec.Name, err)
		}
		out.Rules = append(out.Rules, f)
	}
	out.Assumed = b.assumptions(first)
	return out, nil
}

// solveReviews solves the plans in sequence, each from the counts of the previous one.
func (b *Backtester) solveReviews(out *Backtest, past *LoadTrace) ([]TargetCounts, error) {
	var targets []TargetCounts
	var current [][][]int
	for n, in := range b.inputs {
		r, err := in.solveFrom(current)
		if err != nil {
			return nil, err
		}
		x := r.Counts
		switch {
		case x == nil && current != nil:
			x = current
		case x == nil:
			x = past.ConstantCounts()
		}
		current = x
		step := b.stepOf(n, r, past)
		if step.Replicas = sumAll(x); n > 0 {
			step.Changed = countDifference(x, targets[n-1].Counts)
		}
		out.Reviews = append(out.Reviews, step)
		targets = append(targets, TargetCounts{Minute: int(b.minuteOf(n) - b.from), Counts: x})
	}
	return targets, nil
}

// trackedTargets returns the target counts of the strategy predictive, by the minute: in each region the
// replicas that a tracker of the load requires. Each plan calibrates the tracker, and gives it the highest
// value of the mean forecast over its horizon.
func (b *Backtester) trackedTargets(past *LoadTrace) []TargetCounts {
	var targets []TargetCounts
	var trackers [][]*loadTracker
	p := past.Problem
	for m := range past.minutes() {
		n := m / int(b.every)
		if m%int(b.every) == 0 {
			trackers = b.nextTrackers(n, past, trackers)
		}
		x := zeroCounts(p)
		for i := range x {
			for j := range x[i] {
				if replicaTPS := firstThroughput(p.ReplicaTPS[i]); m > 0 {
					trackers[i][j].observe(m-1, past.Load[i][j][m-1]/replicaTPS, unitsFor(b.inputs[n].means[i][j], replicaTPS))
				}
			}
			past.addTracked(x, i, trackers[i])
		}
		if len(targets) == 0 || countDifference(x, targets[len(targets)-1].Counts) > 0 {
			targets = append(targets, TargetCounts{m, x})
		}
	}
	return targets
}

// addTracked adds the replicas of model i that its trackers require. What exceeds a region's maximum is added in
// the others.
func (p *LoadTrace) addTracked(x [][][]int, i int, trackers []*loadTracker) {
	missing := 0.0
	for j, t := range trackers {
		replicaTPS := firstThroughput(p.Problem.ReplicaTPS[i])
		load := replicaTPS * float64(t.needed)
		p.addReplicas(x, i, j, load, limitOr(p.Problem.Max, i, j, unlimited))
		missing += max(0, load-p.Problem.regionThroughput(x, i, j))
	}
	for j := range trackers {
		if has := p.Problem.regionThroughput(x, i, j); missing > 0 {
			p.addReplicas(x, i, j, has+missing, limitOr(p.Problem.Max, i, j, unlimited))
			missing -= p.Problem.regionThroughput(x, i, j) - has
		}
	}
}

// nextTrackers returns the trackers with the calibration of review n, and the state of the previous ones.
func (b *Backtester) nextTrackers(n int, past *LoadTrace, previous [][]*loadTracker) [][]*loadTracker {
	out := make([][]*loadTracker, len(past.Load))
	for i := range out {
		replicaTPS := firstThroughput(past.Problem.ReplicaTPS[i])
		for j := range past.Load[i] {
			t := newLoadTracker(Tracking{}, knownAt(past.Load[i][j], 0)/replicaTPS)
			if previous != nil {
				t = previous[i][j]
			}
			t.tracking = b.inputs[n].trackings[i][j]
			out[i] = append(out[i], t)
		}
	}
	return out
}

// stepOf returns a review's status, cost and planned load, and the actual load.
func (b *Backtester) stepOf(n int, r *ReviewResult, past *LoadTrace) BacktestStep {
	s := BacktestStep{At: time.Unix(b.minuteOf(n)*60, 0).UTC(), Status: r.Proposal.Status}
	if then := r.Proposal.CostPerHour.Planned; then != nil {
		s.CostPerHour = *then
	}
	for w := range int(b.options.Review.Horizon / time.Minute) {
		var planned, arrived float64
		known := false
		for i := range r.Problem.Models {
			for j := range r.Problem.Regions {
				planned += r.Problem.LoadTPS[i][j][w]
				if at := int(b.minuteOf(n)-b.from) + w; at < len(past.Load[i][j]) && !math.IsNaN(past.Load[i][j][at]) {
					known = true
					arrived += past.Load[i][j][at]
				}
			}
		}
		s.PlannedPeakTPS = max(s.PlannedPeakTPS, planned)
		if known && (s.PeakTPS == nil || arrived > *s.PeakTPS) {
			s.PeakTPS = &arrived
		}
	}
	return s
}

// countDifference returns the number of replicas that differ between two counts.
func countDifference(a, b [][][]int) int {
	sum := 0
	for i := range a {
		for j := range a[i] {
			for k, n := range a[i][j] {
				n -= b[i][j][k]
				sum += max(n, -n)
			}
		}
	}
	return sum
}

// loadTrace returns the load of the service that must be served immediately.
func (b *Backtester) loadTrace(o *ReviewInputs) *LoadTrace {
	p := &LoadTrace{Problem: &o.problem, Price: o.billed}
	for i := range o.problem.Models {
		p.Load = append(p.Load, nil)
		for j := range o.problem.Regions {
			p.Load[i] = append(p.Load[i], o.arrivedLoad(b.history, i, j, b.from, b.to))
		}
	}
	for _, region := range b.spec.Regions {
		p.StartUp = append(p.StartUp, startUpMinutes(o.startUpTime(region.Name.Cloud())))
	}
	return p
}

// arrivedLoad returns the interactive prompt tokens per second of model i that arrived in region j and
// missed the prefix cache, by minute; NaN is unknown.
func (r *review) arrivedLoad(h *forecast.History, i, j int, from, to int64) []float64 {
	out := unknownValues(int(to - from))
	for _, s := range h.Series {
		model, regions := r.endpointsOf(s.SeriesKey)
		if model != i || s.Tier == service.TierDeferred || !slices.Contains(regions, j) {
			continue
		}
		values := slices.Clone(s.Values[from-h.First : to-h.First])
		for m := range values {
			values[m] -= s.Cached[from-h.First+int64(m)]
		}
		addKnown(out, values, 1/(60*float64(len(regions))))
	}
	return out
}

// actualCounts returns the actual counts as target counts; none when they are unknown.
func (b *Backtester) actualCounts(o *ReviewInputs) []TargetCounts {
	counts := b.options.ActualCounts
	current := map[ReplicaCount]int{} // by model, region and GPU, with zero replicas in the key
	var keys []ReplicaCount
	var targets []TargetCounts
	for n, c := range counts {
		key := c.ReplicaCount
		key.Replicas = 0
		if _, ok := current[key]; !ok {
			keys = append(keys, key)
		}
		current[key] = c.Replicas
		minute := max(0, c.At.Unix()/60-b.from)
		if n+1 < len(counts) && (counts[n+1].At.Unix()/60-b.from <= minute) || minute >= b.to-b.from {
			continue
		}
		var all []ReplicaCount
		for _, k := range keys {
			k.Replicas = current[k]
			all = append(all, k)
		}
		r := o.review
		r.setCounts(all)
		targets = append(targets, TargetCounts{Minute: int(minute), Counts: r.problem.Current})
	}
	return targets
}

// assumptions returns how the rules are evaluated, what is ignored, and the assumptions of the first review that do
// not depend on the load.
func (b *Backtester) assumptions(first *ReviewInputs) []string {
	out := []string{
		"only interactive load minus cache hits is compared with capacity; batch work waits for idle capacity",
		"every rule begins with ready replicas; later ones are billed from their launch",
	}
	var r review
	r.setNames(b.spec)
	for _, s := range b.history.Series {
		r.endpointsOf(s.SeriesKey)
	}
	return slices.Concat(out, b.ignored, r.assumptions, first.fixedAssumptions)
}
