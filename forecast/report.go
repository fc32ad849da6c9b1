package forecast

import (
	"fmt"
	"math"
	"time"
)

// Finding counts one kind of flaw in a history and says where it is met first.
type Finding struct {
	Count int
	// Key and At (seconds since the Unix epoch) are of the earliest.
	Key Key
	At  int64
}

func (f *Finding) add(k Key, at int64) { f.merge(Finding{1, k, at}) }

func (f *Finding) merge(other Finding) {
	if other.Count == 0 {
		return
	}
	if f.Count == 0 || other.At < f.At || other.At == f.At && compareKeys(other.Key, f.Key) < 0 {
		f.Key, f.At = other.Key, other.At
	}
	f.Count += other.Count
}

// note is a sentence about the finding, "" when there is none.
func (f Finding) note(one, many, done string) string {
	if f.Count == 0 {
		return ""
	}
	if f.Count > 1 {
		one = many
	}
	return fmt.Sprintf("%d %s, first of %s at %s: %s", f.Count, one, f.Key, moment(f.At), done)
}

// Report tells what was wrong with the samples that series were built from, and
// what was done about it is what Notes says.
type Report struct {
	// Samples is how many there were.
	Samples int
	// Duplicates have the key, source and time of an earlier one, which they replace.
	Duplicates Finding
	// Late came after one of the same source that is of a later time. They are
	// put in their place.
	Late Finding
	// NotNumbers are NaN and left out.
	NotNumbers Finding
	// Resets are counters that began again from zero.
	Resets Finding
	// Lapses are pairs of readings of a counter so far apart that nobody can say
	// when what lies between them came: it is left out.
	Lapses Finding
	// Gaps are runs of unknown steps between known ones, UnknownSteps their steps in all.
	Gaps         Finding
	UnknownSteps int
	// step is the length of a step that UnknownSteps counts.
	step time.Duration
}

// addGaps finds the gaps of a series.
func (r *Report) addGaps(k Keyed) {
	r.step = k.Step
	open := -1 // the first unknown step after a known one
	for i, v := range k.Values {
		switch {
		case math.IsNaN(v) && open < 0 && i > 0 && !math.IsNaN(k.Values[i-1]):
			open = i
		case !math.IsNaN(v) && open >= 0:
			r.Gaps.add(k.Key, k.At(open).Unix())
			r.UnknownSteps += i - open
			open = -1
		}
	}
}

// Merge adds what another report found.
func (r *Report) Merge(other Report) {
	r.Samples += other.Samples
	r.Duplicates.merge(other.Duplicates)
	r.Late.merge(other.Late)
	r.NotNumbers.merge(other.NotNumbers)
	r.Resets.merge(other.Resets)
	r.Lapses.merge(other.Lapses)
	r.Gaps.merge(other.Gaps)
	r.UnknownSteps += other.UnknownSteps
	if other.step != 0 {
		r.step = other.step
	}
}

// Notes says in sentences what was found; none when nothing was.
func (r Report) Notes() []string {
	unknown := Series{Step: r.step}.words(r.UnknownSteps)
	var out []string
	for _, n := range []string{
		r.Duplicates.note("sample came twice", "samples came twice", "the later one counts"),
		r.Late.note("sample came out of order", "samples came out of order", "put in place"),
		r.NotNumbers.note("sample is not a number", "samples are not numbers", "taken as unknown"),
		r.Resets.note("counter began again from zero", "counters began again from zero", "counted on from there"),
		r.Lapses.note("counter was not read for long", "times that a counter was not read for long", "what it grew by is left out"),
		r.Gaps.note("gap", "gaps", unknown+" in all are unknown"),
	} {
		if n != "" {
			out = append(out, n)
		}
	}
	return out
}
