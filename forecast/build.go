package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"skyserve/internal/service"
)

// maxSpan bounds what a set of series may span (400 days): a stray time must
// not ask for the memory of a century.
const maxSpan = 400 * day

// Key names a series: where what it counts arrived, and of which kind it was.
type Key struct {
	Region service.Region
	Model  string
	Tier   service.Tier
}

// String is region, model and tier, as tables and errors show it.
func (k Key) String() string { return fmt.Sprintf("%s %s %s", k.Region, k.Model, k.Tier) }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Tier, b.Tier))
}

// Sample is what one source, such as a balancer, says of a series.
type Sample struct {
	Key
	// Source is who counted. Sources of one series add up.
	Source string
	// At is in seconds since the Unix epoch: a moment of the step that Value is
	// of, or, for Increases, the moment at which a counter was read.
	At int64
	// Value is what was counted since the sample before, the mean rate, or a
	// counter's reading. NaN = the source says that it does not know.
	Value float64
}

// Keyed is a series and what it is of.
type Keyed struct {
	Key
	Series
}

// BuildOptions says how samples become series.
type BuildOptions struct {
	// Step is the length of a step: whole minutes, at least one.
	Step time.Duration
	// Unit is what the values count. It decides how several samples of a source
	// within a step are joined: counts add up, of rates the mean is taken.
	Unit Unit
	// SilenceUnknown makes a step unknown to a series without a sample in it. Else
	// it is zero when any source of the region has a sample there: a source
	// that has nothing to say of a quiet model says nothing.
	SilenceUnknown bool
}

// Build makes one series of every key, all of the same span and sorted by
// model, region and tier. The order of the samples plays no part but in one
// thing: of two samples with the same key, source and time the later one
// counts. The report tells what was wrong with them. It fails when a value is
// negative or too large, or when the samples span more than 400 days.
func Build(samples []Sample, o BuildOptions) ([]Keyed, Report, error) {
	if o.Step < time.Minute || o.Step%time.Minute != 0 {
		return nil, Report{}, fmt.Errorf("building series: step: want whole minutes, got %s", o.Step)
	}
	b := builder{BuildOptions: o, step: int64(o.Step / time.Second)}
	unique := b.dedupe(samples)
	if err := b.measure(unique); err != nil || len(unique) == 0 {
		return nil, b.report, err
	}
	out := b.fill(unique)
	for _, k := range out {
		b.report.addGaps(k)
	}
	return out, b.report, nil
}

type builder struct {
	BuildOptions
	step        int64 // seconds
	first, last int64 // steps since the epoch
	report      Report
}

// source makes samples of one origin comparable.
type source struct {
	Key
	name string
}

// dedupe keeps the last sample of each time of a source, and reports those that
// it drops, those that came late and those that are unknown.
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
		of := source{s.Key, s.Source}
		if i, again := seen[id{of, s.At}]; again {
			b.report.Duplicates.add(s.Key, s.At)
			out[i] = s
			continue
		}
		if n, ok := newest[of]; ok && s.At < n {
			b.report.Late.add(s.Key, s.At)
		} else {
			newest[of] = s.At
		}
		seen[id{of, s.At}] = len(out)
		out = append(out, s)
	}
	return slices.DeleteFunc(out, func(s Sample) bool {
		if math.IsNaN(s.Value) {
			b.report.NotNumbers.add(s.Key, s.At)
			return true
		}
		return false
	})
}

// measure finds the span and refuses what cannot be.
func (b *builder) measure(samples []Sample) error {
	for i, s := range samples {
		if s.Value < 0 || s.Value > maxValue {
			return fmt.Errorf("building series %s: value at %s: want 0 to %g, got %g", s.Key, moment(s.At), float64(maxValue), s.Value)
		}
		at := floorDiv(s.At, b.step)
		if i == 0 {
			b.first, b.last = at, at
		}
		b.first, b.last = min(b.first, at), max(b.last, at)
	}
	if b.last-b.first >= int64(maxSpan/b.Step) || b.first < 0 {
		return fmt.Errorf("building series: %s to %s: want times since 1970 within %d days of each other",
			moment(b.first*b.step), moment(b.last*b.step), maxSpan/day)
	}
	return nil
}

// fill adds the samples up. They are sorted, so that the same ones give the
// same sums in whatever order they came.
func (b *builder) fill(samples []Sample) []Keyed {
	slices.SortStableFunc(samples, func(x, y Sample) int {
		return cmp.Or(compareKeys(x.Key, y.Key), cmp.Compare(x.Source, y.Source), cmp.Compare(x.At, y.At))
	})
	n := int(b.last-b.first) + 1
	reported := map[service.Region][]bool{}
	var out []Keyed
	for from := 0; from < len(samples); {
		to, at := from+1, b.index(samples[from])
		for to < len(samples) && samples[to].Key == samples[from].Key && samples[to].Source == samples[from].Source && b.index(samples[to]) == at {
			to++
		}
		key := samples[from].Key
		if len(out) == 0 || out[len(out)-1].Key != key {
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
		values[at] += b.Unit.join(samples[from:to])
		from = to
	}
	if !b.SilenceUnknown {
		silenceIsZero(out, reported)
	}
	return out
}

func (b *builder) index(s Sample) int { return int(floorDiv(s.At, b.step) - b.first) }

func (b *builder) empty(key Key, n int) Keyed {
	k := Keyed{Key: key, Series: Series{Name: key.String(), Unit: b.Unit, Start: b.first * b.step / 60, Step: b.Step, Values: make([]float64, n)}}
	for i := range k.Values {
		k.Values[i] = math.NaN()
	}
	return k
}

func silenceIsZero(series []Keyed, reported map[service.Region][]bool) {
	for _, k := range series {
		for i, v := range k.Values {
			if math.IsNaN(v) && reported[k.Region][i] {
				k.Values[i] = 0
			}
		}
	}
}

// floorDiv is a/b rounded down; b is above 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// moment writes a time as reports and errors show it.
func moment(at int64) string { return time.Unix(at, 0).UTC().Format("2006-01-02T15:04:05Z") }
