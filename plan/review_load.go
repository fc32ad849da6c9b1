package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
)

const (
	// batchShare is the share of the last hour's batch load that capacity is planned for:
	// SageServe's buffer beta. The remaining batch load uses idle capacity.
	batchShare = 0.1
	// hitRateMinutes is the history from which the expected prefix hit rate is computed: a day contains
	// every mix of traffic.
	hitRateMinutes = 24 * 60
	// shortHistory is a number of minutes: a shorter history also uses the current minute.
	shortHistory = 5
	// minCurrentMinute is the part of the current minute that must have passed before it is used. Earlier,
	// the counts of some regions may be missing.
	minCurrentMinute = 15 * time.Second
	// loadCurveMinutes is the length of the past in a load curve, in minutes.
	loadCurveMinutes = 24 * 60
	// maxShownWeights is the maximum number of forecasts whose weights a plan lists: they hardly ever are equal, and one line
	// each would hide the other assumptions.
	maxShownWeights = 3
	// maxHistoryAge is the maximum time between a history's end and the time of the review.
	maxHistoryAge = 35 * 24 * time.Hour
)

// setLoad sets problem.LoadTPS: for every model and region the load to plan for, in uncached prompt tokens per second, by
// minute. It is the forecast, raised to the peak quantile, and batch load.
func (r *review) setLoad(h *forecast.History) error {
	minutes := int(r.options.Horizon / time.Minute)
	f, err := forecast.ForecasterByName(r.options.Forecaster)
	if err != nil {
		return err
	}
	for i := range r.problem.Models {
		rows := make([][]float64, len(r.problem.Regions))
		for j := range rows {
			rows[j] = make([]float64, minutes)
			r.loadCurves = append(r.loadCurves, LoadCurve{Model: r.problem.Models[i], Region: r.problem.Regions[j], Planned: rows[j]})
		}
		r.problem.LoadTPS = append(r.problem.LoadTPS, rows)
		r.trackings, r.means = append(r.trackings, make([]Tracking, len(rows))), append(r.means, make([]float64, len(rows)))
	}
	if h == nil {
		h = &forecast.History{}
	}
	past, next := r.knownHistory(h)
	r.firstMinuteOnly = past.Minutes == 1 && past.First == h.First
	r.historyEnd = min(past.End(), r.at.Unix()/60)
	if past.Minutes == 0 {
		r.assume("no history yet at %s: no load, scale to min", r.at.Format(time.RFC3339))
		return r.addBacklog(f, r.groupTraffic(past, 0))
	}
	gap := next - past.End()
	if time.Duration(gap)*time.Minute > maxHistoryAge {
		return fmt.Errorf("the history ends %.0f days before %s: must be at most %.0f days; provide a newer history", float64(gap)/(24*60), r.at.Format(time.RFC3339), maxHistoryAge.Hours()/24)
	}
	r.setUncachedShares(past)
	r.setEgress()
	return r.forecastAll(f, r.groupTraffic(past, int(gap)))
}

// knownHistory returns the history known at the time of the review, and the first minute of the
// forecast. A history shorter than shortHistory includes the current minute, once enough of it has
// passed to compute a rate. A history shorter than minHistoryForSteps omits its first minute if it
// has another one: the service began to count within the first minute.
func (r *review) knownHistory(h *forecast.History) (past *forecast.History, next int64) {
	past, next = r.historyWithFirstMinute(h)
	if past.Minutes > 1 && past.Minutes < int(minHistoryForSteps/time.Minute) {
		past = past.Since(h.First + 1)
	}
	return past, next
}

// historyWithFirstMinute is knownHistory, except that it never omits the first minute.
func (r *review) historyWithFirstMinute(h *forecast.History) (past *forecast.History, next int64) {
	minute, passed := r.at.Unix()/60, time.Duration(r.at.Unix()%60)*time.Second
	past = h.Before(minute)
	begun := h.IncludingRunningMinute(minute, passed.Minutes())
	if past.Minutes >= shortHistory || begun.Minutes == past.Minutes || passed < minCurrentMinute {
		return past, minute
	}
	r.unknownPart = time.Minute - passed
	r.assume("history is short: the current minute is extrapolated from its first %d seconds", int(passed.Seconds()))
	return begun, minute + 1
}

// setUncachedShares sets uncached: 1 minus the expected prefix cache hit rate of each model.
func (r *review) setUncachedShares(past *forecast.History) {
	r.uncached = map[string]float64{}
	period := "in the last day"
	if past.Minutes < hitRateMinutes {
		period = fmt.Sprintf("in the %s of history used", forecast.DurationInWords(time.Duration(past.Minutes)*time.Minute-r.unknownPart))
	}
	for _, m := range r.problem.Models {
		rate := r.hitRate(past, m)
		r.uncached[m] = 1 - rate
		if rate > 0 {
			r.assume("%s: prefix hit rate of %.0f %%, as %s", m, 100*rate, period)
		} else {
			r.assume("%s: no prefix hits %s, assuming none", m, period)
		}
	}
}

// uncachedShare returns the uncached share of a model's prompt tokens; 1 if it is unknown.
func (r *review) uncachedShare(model int) float64 {
	if known, ok := r.uncached[r.problem.Models[model]]; ok {
		return known
	}
	return 1
}

// hitRate returns the share of a model's prompt tokens that hit the prefix cache, under the first of
// its name and aliases that the history contains; 0 for none.
func (r *review) hitRate(past *forecast.History, model string) float64 {
	m := r.spec.ModelByName(model)
	names := append([]string{m.Name}, m.Aliases...)
	if len(r.spec.Models) == 1 {
		names = append(names, service.AnyModel)
	}
	for _, name := range names {
		if rate, ok := past.HitRate(name, hitRateMinutes); ok {
			return rate
		}
	}
	return 0
}

// traffic is the past load of a model in a region: expected uncached prompt tokens by minute,
// interactive and batch.
type traffic struct {
	model, region      int
	start              int64
	interactive, batch []float64
}

// groupTraffic groups a history's series by the service's models and regions, and multiplies them
// by the expected uncached share. gap is the number of minutes between the history's end and the
// time of the review; their load is unknown.
func (r *review) groupTraffic(past *forecast.History, gap int) []*traffic {
	grid := map[[2]int]*traffic{}
	for i := range r.problem.Models {
		for j := range r.problem.Regions {
			grid[[2]int{i, j}] = &traffic{
				model: i, region: j, start: past.First,
				interactive: unknownValues(past.Minutes + gap), batch: unknownValues(past.Minutes + gap),
			}
		}
	}
	for _, s := range past.Series {
		i, regions := r.endpointsOf(s.SeriesKey)
		if len(regions) == 0 {
			continue
		}
		uncached := r.uncachedShare(i)
		for _, j := range regions {
			if r.onlyDiscovers(i, j) {
				r.assume("%s in %s: balancers find the replicas: they and their load are not planned", r.problem.Models[i], r.problem.Regions[j])
				continue
			}
			t := grid[[2]int{i, j}]
			to := t.interactive
			if s.Tier == service.TierDeferred {
				to = t.batch
			}
			addKnown(to, s.Values, uncached/float64(len(regions)))
		}
	}
	var out []*traffic
	for i := range r.problem.Models {
		for j := range r.problem.Regions {
			out = append(out, grid[[2]int{i, j}])
		}
	}
	return out
}

// onlyDiscovers reports whether all replicas of a model in a region are found by its balancers: their capacity is unknown.
func (r *review) onlyDiscovers(model, region int) bool {
	at := &r.spec.Regions[region]
	return at.DiscoversReplicas() && r.spec.BoundsFor(r.problem.Models[model], at.Name).Max == 0
}

func unknownValues(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = math.NaN()
	}
	return out
}

// addKnown adds the known values, multiplied by factor.
func addKnown(to, values []float64, factor float64) {
	for m, v := range values {
		if math.IsNaN(v) {
			continue
		}
		if math.IsNaN(to[m]) {
			to[m] = 0
		}
		to[m] += v * factor
	}
}

// forecastAll sets problem.LoadTPS and the load curves from the traffic of every model and region.
func (r *review) forecastAll(f forecast.Forecaster, all []*traffic) error {
	var notes nameGroups
	combined := 0
	r.loaded = map[[2]int]bool{}
	for _, t := range all {
		r.loaded[[2]int{t.model, t.region}] = hasLoad(t.interactive)
		name := r.problem.Regions[t.region]
		if len(r.problem.Models) > 1 {
			name = r.problem.Models[t.model] + " in " + name
		}
		curve := r.loadCurveOf(t)
		if allUnknown(t.interactive) {
			notes.addName("no history: assuming no interactive load", name)
		} else if err := r.forecastTraffic(f, t, curve, func(sentence string) {
			if len(all) > maxShownWeights && strings.HasPrefix(sentence, forecast.CombinedPrefix) {
				combined++
				return
			}
			notes.addName(sentence, name)
		}); err != nil {
			return err
		}
		loads := r.problem.LoadTPS[t.model][t.region]
		if buffer := batchShare * meanLastHour(t.batch) / 60; buffer > 0 {
			for w := range loads {
				loads[w] += buffer
			}
			notes.addName("the planned load includes 10 % of the batch load of the last hour; the rest uses idle capacity", name)
		}
	}
	if combined > 0 {
		r.assume("%d of %d forecasts are combined by past errors; 'skyserve forecast' shows the weights", combined, len(all))
	}
	notes.each(len(all), func(names, sentence string) { r.assume("%s: %s", names, sentence) })
	return r.addBacklog(f, all)
}

// forecastTraffic adds the interactive load to plan for to problem.LoadTPS and its forecast to the load curve, and reports
// its assumptions.
func (r *review) forecastTraffic(f forecast.Forecaster, t *traffic, curve *LoadCurve, addNote func(sentence string)) error {
	loads := r.problem.LoadTPS[t.model][t.region]
	s := inSteps(t.start, t.interactive, int(r.options.Step/time.Minute))
	s.Name = r.problem.Regions[t.region]
	if len(r.problem.Models) > 1 {
		s.Name = r.problem.Models[t.model] + " in " + s.Name
	}
	fc, err := f.Forecast(s, int(time.Duration(len(loads))*time.Minute/s.Step))
	if err != nil {
		return err
	}
	factor := peakFactor(fc, r.options.PeakQuantile)
	curve.Mean, curve.Lo90, curve.Hi90 = byMinute(fc.Mean, s.Step), byMinute(fc.Lo90, s.Step), byMinute(fc.Hi90, s.Step)
	for w, v := range curve.Mean {
		loads[w] += factor * v
	}
	r.means[t.model][t.region] = slices.Max(curve.Mean)
	r.trackings[t.model][t.region] = r.calibratedTracking(t)
	curve.PeakHigh = max(fc.Peaks.P95/s.Step.Seconds(), slices.Max(loads))
	if factor > 1 {
		addNote(fmt.Sprintf("planned for the %s peak of the forecast, which is above its mean", r.options.PeakQuantile))
	}
	for _, a := range fc.Assumed {
		addNote(a)
	}
	deviation := forecast.RecentDeviation(f, s)
	if deviation.Kind != forecast.NoDeviation {
		addNote("load deviates from the forecast: " + deviation.Message)
	}
	r.forecasts = append(r.forecasts, EndpointForecast{
		Model: r.problem.Models[t.model], Region: service.Region(r.problem.Regions[t.region]), Forecast: fc, Deviation: deviation,
		step: s.Step, first: t.start + int64(len(t.interactive)),
	})
	return nil
}

// calibratedTracking calibrates the tracking of a load on its history. Without a throughput it is zero: the threshold
// rule.
func (r *review) calibratedTracking(t *traffic) Tracking {
	tps := firstThroughput(r.problem.ReplicaTPS[t.model])
	if tps == 0 {
		return Tracking{}
	}
	load := unknownValues(len(t.interactive))
	addKnown(load, t.interactive, 1/(60*tps))
	return calibrateTracking(load, startUpMinutes(r.startUpTime(service.Region(r.problem.Regions[t.region]).Cloud())), r.spec.Autoscale.OverloadTolerance)
}

// inSteps converts values by minute, from the minute start on, to a series of steps of several
// minutes. It omits the first minutes if they are not a whole step. With less than minHistoryForSteps, the steps are
// minutes.
func inSteps(start int64, minutes []float64, per int) forecast.Series {
	if len(minutes) < int(minHistoryForSteps/time.Minute) {
		per = 1
	}
	s := forecast.Series{Start: start + int64(len(minutes)%per), Step: time.Duration(per) * time.Minute, Values: minutes}
	if per == 1 {
		return s
	}
	s.Values = stepsOf(minutes[len(minutes)%per:], per)
	return s
}

// stepsOf returns the sums over each `per` minutes, for complete steps. A step with less than half
// of its minutes known is unknown; otherwise its unknown minutes count as the mean of the known
// ones.
func stepsOf(minutes []float64, per int) []float64 {
	out := unknownValues(len(minutes) / per)
	for i := range out {
		part := minutes[i*per:][:per]
		known := 0
		for _, v := range part {
			if !math.IsNaN(v) {
				known++
			}
		}
		if 2*known >= per {
			out[i] = float64(per) * meanKnown(part)
		}
	}
	return out
}

// byMinute converts values of steps to one value per minute, as a rate per second.
func byMinute(values []float64, step time.Duration) []float64 {
	var out []float64
	for _, v := range values {
		for range int(step / time.Minute) {
			out = append(out, v/step.Seconds())
		}
	}
	return out
}

// loadCurveOf starts the load curve of a model in a region with the last day of its load, interactive and
// batch.
func (r *review) loadCurveOf(t *traffic) *LoadCurve {
	for at := range r.loadCurves {
		if c := &r.loadCurves[at]; c.Model == r.problem.Models[t.model] && c.Region == r.problem.Regions[t.region] {
			c.History = perSecond(t.interactive[max(0, len(t.interactive)-loadCurveMinutes):])
			addKnown(c.History, t.batch[max(0, len(t.batch)-loadCurveMinutes):], 1.0/60)
			return c
		}
	}
	return &LoadCurve{}
}

// perSecond converts values per minute to values per second.
func perSecond(values []float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v / 60
	}
	return out
}

// peakFactor returns the factor that raises a forecast's means so that the highest equals a quantile of the
// peak. A noisy load exceeds its highest mean in most hours. The shape of the means, which shows
// when regions can serve each other's load, is unchanged.
func peakFactor(fc forecast.Forecast, quantile string) float64 {
	top := slices.Max(fc.Mean)
	if peak, ok := fc.Peaks.At(quantile); ok && top > 0 && peak > top {
		return peak / top
	}
	return 1
}

func allUnknown(values []float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) })
}

// meanLastHour returns the mean of the known values of the last 60 minutes, 0 for none.
func meanLastHour(values []float64) float64 { return meanKnown(values[max(0, len(values)-60):]) }

// sumKnown returns the sum of the known values.
func sumKnown(values []float64) (sum float64) {
	for _, v := range values {
		if !math.IsNaN(v) {
			sum += v
		}
	}
	return sum
}

// meanKnown returns the mean of the known values, 0 for none.
func meanKnown(values []float64) float64 {
	var sum, n float64
	for _, v := range values {
		if !math.IsNaN(v) {
			sum += v
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}
