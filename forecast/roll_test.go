package forecast

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Values at or after an origin never change the forecast from it, from one origin or rolled through
// several.
func TestForecastsUseNoFutureValues(t *testing.T) {
	s := halfHours(3, 100, 5)
	hole := s.UpTo(len(s.Values))
	hole.Values = slices.Clone(s.Values)
	for i := 90; i < 98; i++ {
		hole.Values[i] = math.NaN()
	}
	for _, f := range Forecasters() {
		checkBlind(t, f, s, 0)
		checkBlind(t, f, hole, 1)
	}
}

// halfHours is daily with longer steps, for less work.
func halfHours(days int, noise float64, seed uint64) Series {
	s := daily(days, noise, seed)
	s.Step, s.Values = 30*time.Minute, blocks(s.Values, 30)
	return s
}

// checkBlind changes the values at or after some of the origins.
func checkBlind(t *testing.T, f Forecaster, s Series, changed ...int) {
	t.Helper()
	origins := []int{106, 109}
	before, err := rollAny(f, s, origins, 6)
	if err != nil {
		t.Fatalf("%s: %v", f.Name(), err)
	}
	for _, k := range changed {
		o := origins[k]
		other := Series{Name: s.Name, Step: s.Step, Values: slices.Clone(s.Values)}
		for i := o; i < len(other.Values); i++ {
			other.Values[i] = 1e6 + float64(i%7)
		}
		after, err := rollAny(f, other, origins[:k+1], 6)
		if err != nil {
			t.Fatalf("%s: %v", f.Name(), err)
		}
		for i := range after {
			if fmt.Sprint(after[i].Mean) != fmt.Sprint(before[i].Mean) {
				t.Errorf("%s: the forecast at %d changes with what comes at %d: %v and %v", f.Name(), origins[i], o, before[i].Mean, after[i].Mean)
			}
		}
	}
}

// A roll's first forecast equals that of a fit there.
func TestRollStartsAtTheFit(t *testing.T) {
	s := halfHours(3, 100, 5)
	for _, f := range Forecasters() {
		rolled, err := rollAny(f, s, []int{111}, 6)
		if err != nil {
			t.Fatal(err)
		}
		alone, err := f.Forecast(s.UpTo(111), 6)
		if err != nil {
			t.Fatal(err)
		}
		for h, m := range alone.Mean {
			if math.Abs(m-rolled[0].Mean[h]) > 1e-6*m {
				t.Errorf("%s step %d: %g rolled, %g alone", f.Name(), h, rolled[0].Mean[h], m)
			}
		}
	}
}

// Past origins are ascending, in the last week, at or after the first, before the end, and few.
func TestPastOrigins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.SampledFrom([]time.Duration{time.Minute, 10 * time.Minute, time.Hour}).Draw(t, "step")
		s := Series{Step: step, Values: make([]float64, rapid.IntRange(0, 12000).Draw(t, "n"))}
		first := rapid.IntRange(1, 2000).Draw(t, "first")
		got := pastOrigins(s, first)
		if len(got) > maxOrigins || !slices.IsSorted(got) {
			t.Fatalf("%d origins, sorted: %v", len(got), slices.IsSorted(got))
		}
		for _, o := range got {
			if o < first || o >= len(s.Values) || o < len(s.Values)-s.steps(errorLookback) {
				t.Fatalf("origin %d of %d steps, first %d", o, len(s.Values), first)
			}
		}
	})
}

// A series in blocks has the means of its whole blocks, aligned to the end.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 15).Draw(t, "size")
		values := rapid.SliceOfN(rapid.Float64Range(0, 100), 0, 100).Draw(t, "values")
		got := blocks(values, size)
		if len(got) != len(values)/size {
			t.Fatalf("%d blocks of %d values", len(got), len(values))
		}
		end := len(values)
		for b := len(got) - 1; b >= 0; b-- {
			if want := mean(values[end-size : end]); math.Abs(got[b]-want) > 1e-9 {
				t.Fatalf("block %d: %g, want %g", b, got[b], want)
			}
			end -= size
		}
	})
	nan := math.NaN()
	if got := blocks([]float64{nan, 4, nan, nan, 6}, 2); !(got[0] == 4) || got[1] != 6 {
		t.Errorf("half of a block is enough: %v", got)
	}
	if got := blocks([]float64{nan, nan, 3}, 3); !math.IsNaN(got[0]) {
		t.Errorf("a third of a block is too little: %v", got)
	}
	if got := unblock([]float64{10, 20}, 2, 6); fmt.Sprint(got) != "[10 12.5 17.5 20 20 20]" {
		t.Errorf("back to steps: %v", got)
	}
}
