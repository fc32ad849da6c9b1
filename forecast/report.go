package forecast

import (
	"fmt"
	"math"
	"time"
)

// SampleFlaw counts one kind of flaw in samples and keeps its first occurrence.
type SampleFlaw struct {
	Count int
	// Key and At (seconds since the Unix epoch) are those of the earliest occurrence.
	Key SeriesKey
	At  int64
}

func (f *SampleFlaw) add(k SeriesKey, at int64) { f.merge(SampleFlaw{1, k, at}) }

func (f *SampleFlaw) merge(other SampleFlaw) {
	if other.Count == 0 {
		return
	}
	if f.Count == 0 || other.At < f.At || other.At == f.At && compareKeys(other.Key, f.Key) < 0 {
		f.Key, f.At = other.Key, other.At
	}
	f.Count += other.Count
}

// sentence returns a sentence about the flaw, "" when it did not occur.
func (f SampleFlaw) sentence(one, many, done string) string {
	if f.Count == 0 {
		return ""
	}
	if f.Count > 1 {
		one = many
	}
	return fmt.Sprintf("%d %s (first: %s at %s): %s", f.Count, one, f.Key, formatTime(f.At), done)
}

// BuildReport lists the flaws of the samples that series were built from. Notes describes them and how
// they were handled.
type BuildReport struct {
	// Samples is the number of samples.
	Samples int
	// Duplicates have the key, source and time of an earlier sample, which they replace.
	Duplicates SampleFlaw
	// Late samples arrived after one of the same source with a later time. They are sorted in.
	Late SampleFlaw
	// NotNumbers are samples with the value NaN; they are ignored.
	NotNumbers SampleFlaw
	// Resets are counters that restarted from zero.
	Resets SampleFlaw
	// LongReadGaps are pairs of readings of a counter so far apart that the time of the increase is
	// unknown: it is ignored.
	LongReadGaps SampleFlaw
	// Gaps are runs of unknown steps between known ones, UnknownSteps their total number of steps.
	Gaps         SampleFlaw
	UnknownSteps int
	// step is the length of a step in UnknownSteps.
	step time.Duration
}

// addGaps adds the gaps of a series.
func (r *BuildReport) addGaps(k KeyedSeries) {
	r.step = k.Step
	open := -1 // the first unknown step after a known one
	for i, v := range k.Values {
		switch {
		case math.IsNaN(v) && open < 0 && i > 0 && !math.IsNaN(k.Values[i-1]):
			open = i
		case !math.IsNaN(v) && open >= 0:
			r.Gaps.add(k.SeriesKey, k.At(open).Unix())
			r.UnknownSteps += i - open
			open = -1
		}
	}
}

// Merge adds the flaws of another report.
func (r *BuildReport) Merge(other BuildReport) {
	r.Samples += other.Samples
	r.Duplicates.merge(other.Duplicates)
	r.Late.merge(other.Late)
	r.NotNumbers.merge(other.NotNumbers)
	r.Resets.merge(other.Resets)
	r.LongReadGaps.merge(other.LongReadGaps)
	r.Gaps.merge(other.Gaps)
	r.UnknownSteps += other.UnknownSteps
	if other.step != 0 {
		r.step = other.step
	}
}

// Notes returns the flaws as sentences.
func (r BuildReport) Notes() []string {
	unknown := Series{Step: r.step}.formatSteps(r.UnknownSteps)
	var out []string
	for _, n := range []string{
		r.Duplicates.sentence("duplicate sample", "duplicate samples", "the last one is used"),
		r.Late.sentence("sample out of order", "samples out of order", "sorted"),
		r.NotNumbers.sentence("sample is not a number", "samples are not numbers", "treated as unknown"),
		r.Resets.sentence("counter reset", "counter resets", "counting continues from zero"),
		r.LongReadGaps.sentence("long gap between counter readings", "long gaps between counter readings", "the increase is ignored"),
		r.Gaps.sentence("gap", "gaps", unknown+" in total are unknown"),
	} {
		if n != "" {
			out = append(out, n)
		}
	}
	return out
}
