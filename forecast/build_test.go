package forecast

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
)

func sample(region, model, source string, at int64, value float64) Sample {
	return Sample{SeriesKey: SeriesKey{service.Region(region), model, "IW-F"}, Source: source, At: at, Value: value}
}

func describe(series []KeyedSeries) string {
	var b strings.Builder
	for _, k := range series {
		fmt.Fprintf(&b, "%s from %d: %v\n", k.SeriesKey, k.Start, k.Values)
	}
	return b.String()
}

func TestBuild(t *testing.T) {
	samples := []Sample{
		sample("us", "m", "us-0", 6000, 10),
		sample("us", "m", "us-1", 6000, 20),
		sample("us", "m", "us-0", 6030, 5), // the same minute: adds up
		sample("us", "m", "us-0", 6240, 7),
		sample("us", "n", "us-0", 6060, 1),          // not late: another series
		sample("us", "m", "us-0", 6000, 11),         // a duplicate: replaces the first
		sample("us", "m", "us-0", 6060, 3),          // late
		sample("eu", "m", "eu-0", 6240, math.NaN()), // reports an unknown value
		sample("eu", "m", "eu-0", 6180, 9),
	}
	got, report, err := BuildSeries(samples, BuildOptions{Step: time.Minute, Unit: PromptTokens})
	if err != nil {
		t.Fatal(err)
	}
	want := "eu m fast from 100: [NaN NaN NaN 9 NaN]\nus m fast from 100: [36 3 NaN NaN 7]\nus n fast from 100: [0 1 NaN NaN 0]\n"
	if describe(got) != want {
		t.Errorf("got\n%swant\n%s", describe(got), want)
	}
	notes := strings.Join(report.Notes(), "\n")
	wantNotes := `1 duplicate sample (first: us m fast at 1970-01-01T01:40:00Z): the last one is used
2 samples out of order (first: us m fast at 1970-01-01T01:41:00Z): sorted
1 sample is not a number (first: eu m fast at 1970-01-01T01:44:00Z): treated as unknown
2 gaps (first: us m fast at 1970-01-01T01:42:00Z): 4 minutes in total are unknown`
	if notes != wantNotes || report.Samples != len(samples) {
		t.Errorf("of %d samples\n%s\nwant\n%s", report.Samples, notes, wantNotes)
	}
	got, _, err = BuildSeries(samples, BuildOptions{Step: 2 * time.Minute, Unit: RequestRate, MissingIsUnknown: true})
	want = "eu m fast from 100: [NaN 9 NaN]\nus m fast from 100: [" + fmt.Sprint((11.0+5+3)/3+20) + " NaN 7]\nus n fast from 100: [1 NaN NaN]\n"
	if err != nil || describe(got) != want {
		t.Errorf("rates: got\n%swant\n%s", describe(got), want)
	}
}

func TestBuildRejectsBadSamples(t *testing.T) {
	for name, c := range map[string]struct {
		samples []Sample
		step    time.Duration
		want    string
	}{
		"step":     {nil, time.Second, "building series: step: must be whole minutes, got 1s"},
		"negative": {[]Sample{sample("us", "m", "", 60, -1)}, time.Minute, "building series us m fast: value at 1970-01-01T00:01:00Z: must be 0 to 1e+18, got -1"},
		"infinite": {[]Sample{sample("us", "m", "", 60, math.Inf(1))}, time.Minute, "got +Inf"},
		"span":     {[]Sample{sample("us", "m", "", 60, 1), sample("us", "m", "", 400*86400+60, 1)}, time.Minute, "times must be after 1970 and within 400 days of each other"},
		"before":   {[]Sample{sample("us", "m", "", -60, 1)}, time.Minute, "times must be after 1970"},
	} {
		if _, _, err := BuildSeries(c.samples, BuildOptions{Step: c.step}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
	}
	if got, report, err := BuildSeries([]Sample{sample("us", "m", "", 60, math.NaN())}, BuildOptions{Step: time.Minute}); err != nil || len(got) != 0 || report.NotNumbers.Count != 1 {
		t.Errorf("nothing known: %v, %+v, %v", got, report, err)
	}
}

func drawSamples(t *rapid.T, value *rapid.Generator[float64]) []Sample {
	var out []Sample
	for range rapid.IntRange(0, 30).Draw(t, "n") {
		out = append(out, sample(rapid.SampledFrom([]string{"us", "eu"}).Draw(t, "region"), rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"),
			rapid.SampledFrom([]string{"a", "b"}).Draw(t, "source"), rapid.Int64Range(0, 40).Draw(t, "at")*30, value.Draw(t, "value")))
	}
	return out
}

// dumbBuild checks every sample for every value.
func dumbBuild(samples []Sample, o BuildOptions, key SeriesKey, at int64) float64 {
	step := int64(o.Step / time.Second)
	total, silent, received := 0.0, true, false
	for _, src := range []string{"a", "b"} {
		last := map[int64]float64{}
		for _, s := range samples {
			if s.SeriesKey.Region == key.Region && s.Source == src && s.At/step == at/step {
				if s.SeriesKey == key {
					last[s.At] = s.Value
				}
			}
		}
		sum, n := 0.0, 0
		for _, v := range last {
			if !math.IsNaN(v) {
				sum, n = sum+v, n+1
			}
		}
		if n > 0 {
			silent = false
			if o.Unit.IsRate() {
				sum /= float64(n)
			}
			total += sum
		}
	}
	latest := map[string]float64{}
	for _, s := range samples {
		if s.Region == key.Region && s.At/step == at/step {
			latest[fmt.Sprint(s.SeriesKey, s.Source, s.At)] = s.Value
		}
	}
	for _, v := range latest {
		received = received || !math.IsNaN(v)
	}
	if silent && (o.MissingIsUnknown || !received) {
		return math.NaN()
	}
	return total
}

func TestBuildEqualsSimpleBuild(t *testing.T) {
	values := rapid.OneOf(rapid.Float64Range(0, 1e6), rapid.Just(math.NaN()))
	rapid.Check(t, func(t *rapid.T) {
		samples := drawSamples(t, values)
		o := BuildOptions{
			Step:             time.Duration(rapid.IntRange(1, 5).Draw(t, "step")) * time.Minute,
			Unit:             rapid.SampledFrom([]Unit{PromptTokens, RequestRate}).Draw(t, "unit"),
			MissingIsUnknown: rapid.Bool().Draw(t, "silence"),
		}
		got, _, err := BuildSeries(samples, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range got {
			for i, v := range k.Values {
				want := dumbBuild(samples, o, k.SeriesKey, k.At(i).Unix())
				if math.IsNaN(v) != math.IsNaN(want) || math.Abs(v-want) > 1e-6 {
					t.Fatalf("%s step %d: %g, want %g", k.SeriesKey, i, v, want)
				}
			}
		}
	})
}

// Samples with different times may be in any order.
func TestBuildIgnoresSampleOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := drawSamples(t, rapid.Float64Range(0, 1e6))
		seen := map[string]bool{}
		samples = slices.DeleteFunc(samples, func(s Sample) bool {
			id := fmt.Sprint(s.SeriesKey, s.Source, s.At)
			dup := seen[id]
			seen[id] = true
			return dup
		})
		shuffled := rapid.Permutation(samples).Draw(t, "order")
		a, _, errA := BuildSeries(samples, BuildOptions{Step: time.Minute})
		b, _, errB := BuildSeries(shuffled, BuildOptions{Step: time.Minute})
		if errA != nil || errB != nil || describe(a) != describe(b) {
			t.Fatalf("%v, %v:\n%s\nor\n%s", errA, errB, describe(a), describe(b))
		}
	})
}

// CounterIncreases sum to the counter's growth: whatever the reading times and resets, complete steps
// between close readings get the growth within them.
func TestIncreasesSumToTheCounter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		grown := make([]float64, 600) // by second
		for i := range grown {
			grown[i] = float64(rapid.IntRange(0, 5).Draw(t, "growth"))
		}
		restart := rapid.IntRange(0, 60).Draw(t, "restart") * 10
		var readings []Sample
		var total float64
		for i := range grown {
			if i == restart {
				total = 0
			}
			if i%10 == 0 { // a restart is seen at once, so nothing is lost
				readings = append(readings, sample("us", "m", "a", int64(i), total))
			}
			total += grown[i]
		}
		got, _, err := CounterIncreases(readings, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 9 { // the tenth minute's last ten seconds were not read
			t.Fatalf("%d whole minutes", len(got))
		}
		for i, s := range got {
			var want float64
			for second := i * 60; second < i*60+60; second++ {
				if second < restart-10 || second >= restart {
					want += grown[second]
				}
			}
			if s.At != int64(i)*60 || math.Abs(s.Value-want) > 60 { // what fell with the restart is lost
				t.Fatalf("minute %d: %g, want %g", i, s.Value, want)
			}
			if (restart < i*60 || restart > i*60+60) && math.Abs(s.Value-want) > 1e-9 {
				t.Fatalf("minute %d without a restart: %g, want %g", i, s.Value, want)
			}
		}
	})
}

func TestIncreases(t *testing.T) {
	got, report, err := CounterIncreases([]Sample{
		sample("us", "m", "a", 90, 10), // half a minute is not a complete minute
		sample("us", "m", "a", 120, 16),
		sample("us", "m", "a", 180, 26),
		sample("us", "m", "a", 300, 46), // distributed over two minutes
		sample("us", "m", "a", 360, 3),  // restarted
		sample("us", "m", "a", 900, 50), // too long without a reading
		sample("us", "m", "a", 960, 51),
		sample("us", "m", "b", 120, 5),
	}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range got {
		fmt.Fprintf(&b, "%d:%g ", s.At, s.Value)
	}
	if want := "120:10 180:10 240:10 300:3 900:1 "; b.String() != want {
		t.Errorf("got %s, want %s", &b, want)
	}
	want := "1 counter reset (first: us m fast at 1970-01-01T00:06:00Z): counting continues from zero\n" +
		"1 long gap between counter readings (first: us m fast at 1970-01-01T00:06:00Z): the increase is ignored"
	if notes := strings.Join(report.Notes(), "\n"); notes != want {
		t.Errorf("notes\n%s\nwant\n%s", notes, want)
	}
	for want, bad := range map[string][]Sample{
		"us m fast at 1970-01-01T00:01:00Z: must be 0 to 1e+18, got -1":    {sample("us", "m", "a", 0, 1), sample("us", "m", "a", 60, -1)},
		"us m fast at 1970-01-01T00:01:00Z: must be 0 to 1e+18, got +Inf":  {sample("us", "m", "a", 0, 1), sample("us", "m", "a", 60, math.Inf(1))},
		"us m fast at 1970-01-01T00:01:00Z: must be 0 to 1e+18, got 2e+18": {sample("us", "m", "a", 0, 1), sample("us", "m", "a", 60, 2e18)},
		"us m fast at 1970-01-01T00:00:00Z: must be 0 to 1e+18, got -2":    {sample("us", "m", "a", 0, -2), sample("us", "m", "a", 60, 1)},
	} {
		if _, _, err := CounterIncreases(bad, time.Minute); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, _, err := CounterIncreases(nil, 0); err == nil {
		t.Error("a step of nothing was accepted")
	}
}

func TestResample(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		s     Series
		step  time.Duration
		want  []float64
		start int64
	}{
		"sums":          {Series{Unit: Requests, Step: time.Minute, Values: []float64{1, 2, 3, 4}}, 2 * time.Minute, []float64{3, 7}, 0},
		"means":         {Series{Unit: RequestRate, Step: time.Minute, Values: []float64{1, 2, 3, 4}}, 2 * time.Minute, []float64{1.5, 3.5}, 0},
		"edges":         {Series{Start: 3, Step: time.Minute, Values: []float64{1, 2, 3, 4, 5, 6}}, 5 * time.Minute, nil, 0},
		"inner":         {Series{Start: 3, Step: time.Minute, Values: []float64{1, 2, 3, 4, 5, 6, 7, 8}}, 5 * time.Minute, []float64{3 + 4 + 5 + 6 + 7}, 5},
		"unknown":       {Series{Step: time.Minute, Values: []float64{1, nan, 3, 4}}, 2 * time.Minute, []float64{nan, 7}, 0},
		"to ten of ten": {Series{Step: 10 * time.Minute, Values: []float64{1, 2}}, 10 * time.Minute, []float64{1, 2}, 0},
	} {
		got, err := Resample(c.s, c.step)
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), "has no whole step of") {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		if err != nil || fmt.Sprint(got.Values) != fmt.Sprint(c.want) || got.Start != c.start || got.Step != c.step || got.Unit != c.s.Unit {
			t.Errorf("%s: %+v, %v; want %v from %d", name, got, err, c.want, c.start)
		}
	}
	for name, c := range map[string]struct {
		s    Series
		step time.Duration
	}{
		"no multiple": {Series{Step: 2 * time.Minute, Values: []float64{1, 2, 3}}, 5 * time.Minute},
		"shorter":     {Series{Step: 10 * time.Minute, Values: []float64{1, 2, 3}}, time.Minute},
		"seconds":     {Series{Step: time.Second, Values: make([]float64, 100)}, 10 * time.Second},
		"no step":     {Series{Values: []float64{1}}, time.Minute},
		"never meet":  {Series{Start: 1, Step: 2 * time.Minute, Values: make([]float64, 9)}, 4 * time.Minute},
	} {
		if got, err := Resample(c.s, c.step); err == nil {
			t.Errorf("%s: accepted as %+v", name, got)
		}
	}
}

// Resampling sums the values within a step, in one pass or in several.
func TestResampleEqualsSimpleResample(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Series{Name: "s", Start: rapid.Int64Range(0, 50).Draw(t, "start"), Step: time.Minute, Unit: rapid.SampledFrom([]Unit{Requests, RequestRate}).Draw(t, "unit")}
		s.Values = rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(0, 100), rapid.Just(math.NaN())), 1, 80).Draw(t, "values")
		parts := rapid.IntRange(1, 15).Draw(t, "parts")
		step := time.Duration(parts) * time.Minute
		got, err := Resample(s, step)
		if err != nil {
			if whole := (s.Start+int64(parts)-1)/int64(parts)*int64(parts) - s.Start + int64(parts); int(whole) <= len(s.Values) {
				t.Fatalf("a whole step was there: %v", err)
			}
			return
		}
		for i, v := range got.Values {
			sum, n := 0.0, 0
			for j, x := range s.Values {
				if at := s.At(j); !at.Before(got.At(i)) && at.Before(got.At(i+1)) {
					sum, n = sum+x, n+1
				}
			}
			if s.Unit.IsRate() {
				sum /= float64(n)
			}
			if n != parts || math.IsNaN(sum) != math.IsNaN(v) || math.Abs(sum-v) > 1e-9 {
				t.Fatalf("step %d: %g, want %g of %d parts", i, v, sum, n)
			}
		}
		if !got.End().Before(s.End().Add(time.Nanosecond)) || s.End().Sub(got.End()) >= step || got.At(0).Sub(s.At(0)) >= step {
			t.Fatalf("%s to %s became %s to %s", s.At(0), s.End(), got.At(0), got.End())
		}
	})
}
