package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
)

// maxSpan bounds the span of a set of series (400 days): one wrong timestamp must not allocate the
// memory of a century.
const maxSpan = 400 * day

// SeriesKey identifies a series: the region, model and tier of its requests.
type SeriesKey struct {
	Region service.Region
	Model  string // the LLM
	Tier   service.Tier
}

// String returns region, model and tier for tables and errors, with the word of the tier: us llama fast. Without the
// region if the history has no regions, and without the model if it has no models.
func (k SeriesKey) String() string {
	parts := []string{string(k.Region), k.Model, k.Tier.Word()}
	if k.Model == service.AnyModel {
		parts = slices.Delete(parts, 1, 2)
	}
	if k.Region == service.AnyRegion {
		parts = parts[1:]
	}
	return strings.Join(parts, " ")
}

// ID returns region, model and tier for JSON, with the abbreviation of the tier: us llama IW-F.
func (k SeriesKey) ID() string { return fmt.Sprintf("%s %s %s", k.Region, k.Model, k.Tier) }

func compareKeys(a, b SeriesKey) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Tier, b.Tier))
}

// Sample is a value of a series from one source, such as a balancer.
type Sample struct {
	SeriesKey
	// Source identifies who counted. Sources of one series add up.
	Source string
	// At is in seconds since the Unix epoch: a moment within Value's step, or, for CounterIncreases,
	// the moment when a counter was read.
	At int64
	// Value is the count since the previous sample, the mean rate, or a counter's reading. NaN =
	// unknown to the source.
	Value float64
}

// KeyedSeries is a series with its key.
type KeyedSeries struct {
	SeriesKey
	Series
}

// BuildOptions configures the conversion of samples to series.
type BuildOptions struct {
	// Step is the length of a step: whole minutes, at least one.
	Step time.Duration
	// Unit is the unit of the values. It decides how several samples of a source within a step are
	// combined: counts are summed, rates averaged.
	Unit Unit
	// MissingIsUnknown makes a step without a sample unknown. Otherwise it is zero when any source of
	// the region has a sample in that step: a source sends nothing for an idle model.
	MissingIsUnknown bool
}

// BuildSeries returns one series per key, all of the same span and sorted by model, region and tier. The
// order of the samples does not matter, except that of two samples with the same key, source and
// time the later one counts. The report lists the flaws of the samples. It fails when a value is
// negative or too large, or when the samples span more than 400 days.
func BuildSeries(samples []Sample, o BuildOptions) ([]KeyedSeries, BuildReport, error) {
	if o.Step < time.Minute || o.Step%time.Minute != 0 {
		return nil, BuildReport{}, fmt.Errorf("building series: step: must be whole minutes, got %s", o.Step)
	}
	b := builder{BuildOptions: o, step: int64(o.Step / time.Second)}
	unique := b.dedupe(samples)
	if err := b.findSpan(unique); err != nil || len(unique) == 0 {
		return nil, b.report, err
	}
	out := b.fill(unique)
	for _, k := range out {
		b.report.addGaps(k)
	}
	return out, b.report, nil
}

// builder converts samples to the series of BuildSeries.
type builder struct {
	BuildOptions
	step        int64 // seconds
	first, last int64 // steps since the epoch
	report      BuildReport
}

// source identifies the samples of one series from one sender.
type source struct {
	SeriesKey
	name string
}

// dedupe keeps the last sample of each time of a source, and reports duplicates, late samples and
// NaN samples.
func (b *builder) dedupe(samples []Sample) []Sample {
	type id struct {
		source
		at int64
	}
	seen := make(map[id]int, len(samples))
	newest := map[source]int64{}
	out := make([]Sample, 0, len(samples))
	b.report.Samples += len(samples)
	for _, s := range samples {
		of := source{s.SeriesKey, s.Source}
		if i, again := seen[id{of, s.At}]; again {
			b.report.Duplicates.add(s.SeriesKey, s.At)
			out[i] = s
			continue
		}
		if n, ok := newest[of]; ok && s.At < n {
			b.report.Late.add(s.SeriesKey, s.At)
		} else {
			newest[of] = s.At
		}
		seen[id{of, s.At}] = len(out)
		out = append(out, s)
	}
	return slices.DeleteFunc(out, func(s Sample) bool {
		if math.IsNaN(s.Value) {
			b.report.NotNumbers.add(s.SeriesKey, s.At)
			return true
		}
		return false
	})
}

// findSpan computes the span and rejects invalid samples.
func (b *builder) findSpan(samples []Sample) error {
	for i, s := range samples {
		if s.Value < 0 || s.Value > maxValue {
			return fmt.Errorf("building series %s: value at %s: must be 0 to %g, got %g", s.SeriesKey, formatTime(s.At), float64(maxValue), s.Value)
		}
		at := floorDiv(s.At, b.step)
		if i == 0 {
			b.first, b.last = at, at
		}
		b.first, b.last = min(b.first, at), max(b.last, at)
	}
	if b.last-b.first >= int64(maxSpan/b.Step) || b.first < 0 {
		return fmt.Errorf("building series: %s to %s: times must be after 1970 and within %d days of each other",
			formatTime(b.first*b.step), formatTime(b.last*b.step), maxSpan/day)
	}
	return nil
}

// fill sums the samples. They are sorted, so that the sums do not depend on their order.
func (b *builder) fill(samples []Sample) []KeyedSeries {
	slices.SortStableFunc(samples, func(x, y Sample) int {
		return cmp.Or(compareKeys(x.SeriesKey, y.SeriesKey), cmp.Compare(x.Source, y.Source), cmp.Compare(x.At, y.At))
	})
	n := int(b.last-b.first) + 1
	reported := map[service.Region][]bool{}
	var out []KeyedSeries
	for from := 0; from < len(samples); {
		to, at := from+1, b.index(samples[from])
		for to < len(samples) && samples[to].SeriesKey == samples[from].SeriesKey && samples[to].Source == samples[from].Source && b.index(samples[to]) == at {
			to++
		}
		key := samples[from].SeriesKey
		if len(out) == 0 || out[len(out)-1].SeriesKey != key {
			out = append(out, b.empty(key, n))
		}
		if reported[key.Region] == nil {
			reported[key.Region] = make([]bool, n)
		}
		reported[key.Region][at] = true
		values := out[len(out)-1].Values
		if math.IsNaN(values[at]) {
			values[at] = 0
		}
		values[at] += b.Unit.combine(samples[from:to])
		from = to
	}
	if !b.MissingIsUnknown {
		silenceIsZero(out, reported)
	}
	return out
}

func (b *builder) index(s Sample) int { return int(floorDiv(s.At, b.step) - b.first) }

func (b *builder) empty(key SeriesKey, n int) KeyedSeries {
	k := KeyedSeries{SeriesKey: key, Series: Series{Name: key.String(), Unit: b.Unit, Start: b.first * b.step / 60, Step: b.Step, Values: make([]float64, n)}}
	for i := range k.Values {
		k.Values[i] = math.NaN()
	}
	return k
}

func silenceIsZero(series []KeyedSeries, reported map[service.Region][]bool) {
	for _, k := range series {
		for i, v := range k.Values {
			if math.IsNaN(v) && reported[k.Region][i] {
				k.Values[i] = 0
			}
		}
	}
}

// floorDiv returns a/b rounded down; b must be greater than 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// formatTime formats a time for reports and errors.
func formatTime(at int64) string { return time.Unix(at, 0).UTC().Format("2006-01-02T15:04:05Z") }
