package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
)

const (
	// batchShare is how much of the last hour's batch load is planned for:
	// SageServe's buffer beta; the rest fills idle capacity.
	batchShare = 0.1
	// hitMinutes is the past that the expected prefix hit rate is learned from:
	// a day holds every mix of traffic.
	hitMinutes = 24 * 60
	// shortHistory is how many minutes are enough to do without the running one.
	shortHistory = 5
	// minOfMinute is how much of the running minute must have passed: balancers
	// store what they counted every 10 s, so less would show some regions empty.
	minOfMinute = 15 * time.Second
	// courseMinutes is how much of the past a course shows.
	courseMinutes = 24 * 60
	// maxStale is how long before the planned time a history may end.
	maxStale = 35 * 24 * time.Hour
)

// load fills in rho: for every model and region the forecast of uncached prompt
// tokens a second by minute.
func (r *review) load(h *forecast.History) error {
	minutes := int(r.o.Horizon / time.Minute)
	f, err := forecast.ByName(r.o.Forecaster)
	if err != nil {
		return err
	}
	for i := range r.p.Models {
		rows := make([][]float64, len(r.p.Regions))
		for j := range rows {
			rows[j] = make([]float64, minutes)
			r.courses = append(r.courses, Course{Model: r.p.Models[i], Region: r.p.Regions[j], Planned: rows[j]})
		}
		r.p.Rho = append(r.p.Rho, rows)
	}
	if h == nil {
		h = &forecast.History{}
	}
	past, now := r.past(h)
	if past.Minutes == 0 {
		r.assume("there is no history before %s: no load is assumed, and only the least replicas are kept", r.at.Format(time.RFC3339))
		return nil
	}
	gap := now - past.End()
	if time.Duration(gap)*time.Minute > maxStale {
		return fmt.Errorf("the history ends %d minutes before %s: too long ago to forecast from", gap, r.at.Format(time.RFC3339))
	}
	r.hitRates(past)
	r.egress()
	return r.forecastAll(f, r.traffic(past, int(gap)))
}

// past is what is known at the planned time, and the minute that the forecast
// begins with. With a few minutes of history only, the running one counts too,
// once enough of it has passed to tell a rate.
func (r *review) past(h *forecast.History) (past *forecast.History, next int64) {
	minute, passed := r.at.Unix()/60, time.Duration(r.at.Unix()%60)*time.Second
	past = h.Before(minute)
	begun := h.Begun(minute, passed.Minutes())
	if past.Minutes >= shortHistory || begun.Minutes == past.Minutes || passed < minOfMinute {
		return past, minute
	}
	r.assume("history is short: the running minute counts too, as if its first %d seconds went on", int(passed.Seconds()))
	return begun, minute + 1
}

// hitRates says how much of each model's prompts caches are expected to spare.
func (r *review) hitRates(past *forecast.History) {
	r.uncached = map[string]float64{}
	for _, m := range r.p.Models {
		rate := r.hitRate(past, m)
		r.uncached[m] = 1 - rate
		if rate > 0 {
			r.assume("%s: %.0f %% of its prompt tokens hit the prefix cache, as in the last day", m, 100*rate)
		} else {
			r.assume("%s: no prefix hits are known in the last day, none are expected", m)
		}
	}
}

// hitRate is the share of a model's prompt tokens that caches spared, over all
// names that it goes by.
func (r *review) hitRate(past *forecast.History, model string) float64 {
	m := r.spec.ModelByName(model)
	for _, name := range append([]string{m.Name}, m.Aliases...) {
		if rate, ok := past.HitRate(name, hitMinutes); ok {
			return rate
		}
	}
	return 0
}

// traffic is a model's past in a region: interactive prompt tokens by minute,
// and batch ones.
type traffic struct {
	model, region      int
	start              int64
	interactive, batch []float64
}

// traffic sorts a history's series by the service's models and regions, and
// less what caches spare. gap is how many minutes before the planned time the
// history ends; they are unknown.
func (r *review) traffic(past *forecast.History, gap int) []*traffic {
	grid := map[[2]int]*traffic{}
	for i := range r.p.Models {
		for j := range r.p.Regions {
			grid[[2]int{i, j}] = &traffic{
				model: i, region: j, start: past.First,
				interactive: unknown(past.Minutes + gap), batch: unknown(past.Minutes + gap),
			}
		}
	}
	for _, s := range past.Series {
		i := r.modelIndex(s.Model)
		if i < 0 {
			r.assume("the history of %s is of no model of the service: left out", s.Model)
			continue
		}
		regions := r.regionsOf(s.Region)
		if len(regions) == 0 {
			r.assume("the history of region %s is of no region of the service: left out", s.Region)
		}
		uncached := r.uncached[r.p.Models[i]]
		for _, j := range regions {
			t := grid[[2]int{i, j}]
			to := t.interactive
			if s.Tier == service.TierDeferred {
				to = t.batch
			}
			addKnown(to, s.Values, uncached/float64(len(regions)))
		}
	}
	var out []*traffic
	for i := range r.p.Models {
		for j := range r.p.Regions {
			out = append(out, grid[[2]int{i, j}])
		}
	}
	return out
}

// regionsOf is which regions of the service a region of the history stands for:
// itself, the one of that place, or, for one that names none, all.
func (r *review) regionsOf(region service.Region) []int {
	if j := r.regionIndex(region); j >= 0 {
		return []int{j}
	}
	var all, place []int
	for j, name := range r.p.Regions {
		all = append(all, j)
		if service.Region(name).Place() == string(region) {
			place = append(place, j)
		}
	}
	if region == service.AnyRegion {
		if len(all) > 1 {
			r.assume("the history does not tell regions: its load is split evenly over %d", len(all))
		}
		return all
	}
	if len(place) == 1 {
		return place
	}
	return nil
}

func unknown(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = math.NaN()
	}
	return out
}

// addKnown adds what is known, times a factor.
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

// forecastAll fills rho in from the traffic of every model and region, and the
// courses.
func (r *review) forecastAll(f forecast.Forecaster, all []*traffic) error {
	var words group
	for _, t := range all {
		name := r.p.Regions[t.region]
		if len(r.p.Models) > 1 {
			name = r.p.Models[t.model] + " in " + name
		}
		course := r.courseOf(t)
		if allUnknown(t.interactive) {
			words.add("no history: no interactive load is assumed", name)
		} else if err := r.forecast(f, t, course, func(sentence string) { words.add(sentence, name) }); err != nil {
			return err
		}
		rho := r.p.Rho[t.model][t.region]
		if buffer := batchShare * lastHour(t.batch) / 60; buffer > 0 {
			for w := range rho {
				rho[w] += buffer
			}
			words.add("a tenth of the last hour's batch load is planned for", name)
		}
	}
	words.each(len(all), func(names, sentence string) { r.assume("%s: %s", names, sentence) })
	return nil
}

// forecast adds what is expected of the interactive traffic to rho and its course,
// and says what that rests on.
func (r *review) forecast(f forecast.Forecaster, t *traffic, course *Course, say func(sentence string)) error {
	rho := r.p.Rho[t.model][t.region]
	s := inSteps(t.start, t.interactive, int(r.o.Step/time.Minute))
	s.Name = r.p.Regions[t.region]
	if len(r.p.Models) > 1 {
		s.Name = r.p.Models[t.model] + " in " + s.Name
	}
	fc, err := f.Forecast(s, int(time.Duration(len(rho))*time.Minute/s.Step))
	if err != nil {
		return err
	}
	lift := lifted(fc, r.o.Peak)
	course.Mean, course.Lo90, course.Hi90 = byMinute(fc.Mean, s.Step), byMinute(fc.Lo90, s.Step), byMinute(fc.Hi90, s.Step)
	for w, v := range course.Mean {
		rho[w] += lift * v
	}
	course.PeakHigh = max(fc.Peaks.P95/s.Step.Seconds(), slices.Max(rho))
	if lift > 1 {
		say(fmt.Sprintf("the %s peak of the time is planned for, not its mean", r.o.Peak))
	}
	for _, a := range fc.Assumed {
		say(a)
	}
	left := forecast.Departed(f, s)
	if left.Kind != forecast.NoDeparture {
		say("load left the forecast: " + left.Words)
	}
	r.loads = append(r.loads, Load{
		Model: r.p.Models[t.model], Region: service.Region(r.p.Regions[t.region]), Forecast: fc, Left: left,
		step: s.Step, first: t.start + int64(len(t.interactive)),
	})
	return nil
}

// inSteps is minutes from start on as a series of steps of several minutes, the last of
// which ends where the minutes do.
func inSteps(start int64, minutes []float64, per int) forecast.Series {
	if len(minutes) < int(stepFrom/time.Minute) {
		per = 1
	}
	s := forecast.Series{Start: start + int64(len(minutes)%per), Step: time.Duration(per) * time.Minute, Values: minutes}
	if per == 1 {
		return s
	}
	s.Values = stepsOf(minutes[len(minutes)%per:], per)
	return s
}

// stepsOf is the sums of each so many minutes, of those steps that are over. A step of
// which less than half is known is unknown; what else is unknown of one was as what is
// known.
func stepsOf(minutes []float64, per int) []float64 {
	out := unknown(len(minutes) / per)
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

// byMinute is values of steps by the minute, a second.
func byMinute(values []float64, step time.Duration) []float64 {
	var out []float64
	for _, v := range values {
		for range int(step / time.Minute) {
			out = append(out, v/step.Seconds())
		}
	}
	return out
}

// courseOf begins the course of a model in a region with the last day of its load,
// interactive and batch.
func (r *review) courseOf(t *traffic) *Course {
	for at := range r.courses {
		if c := &r.courses[at]; c.Model == r.p.Models[t.model] && c.Region == r.p.Regions[t.region] {
			c.Past = perSecond(t.interactive[max(0, len(t.interactive)-courseMinutes):])
			addKnown(c.Past, t.batch[max(0, len(t.batch)-courseMinutes):], 1.0/60)
			return c
		}
	}
	return &Course{}
}

// perSecond turns what came by the minute into what came a second.
func perSecond(values []float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v / 60
	}
	return out
}

// lifted is by how much the means of a forecast must be raised for the greatest of
// them to be the peak at a level. A noisy load passes its greatest mean in most
// hours; the means' course, which says when regions can help each other, stays.
func lifted(fc forecast.Forecast, level string) float64 {
	top := slices.Max(fc.Mean)
	if peak, ok := fc.Peaks.At(level); ok && top > 0 && peak > top {
		return peak / top
	}
	return 1
}

func allUnknown(values []float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) })
}

// lastHour is the mean of the known values of the last 60 minutes, 0 for none.
func lastHour(values []float64) float64 { return meanKnown(values[max(0, len(values)-60):]) }

// meanKnown is the mean of the known values, 0 for none.
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
