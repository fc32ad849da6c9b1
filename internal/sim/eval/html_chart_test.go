package eval

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/sim"
)

// An axis keeps the order of values, shows all of them, and has marks, whether
// logarithmic or not.
func TestAxes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		low := rapid.Float64Range(0, 100).Draw(rt, "low")
		high := low + rapid.Float64Range(0, 1e6).Draw(rt, "more")
		middle := low + (high-low)*rapid.Float64Range(0, 1).Draw(rt, "middle")
		c := &policyChart{}
		c.scale(low, high)
		a, b, d := c.axis.x(low), c.axis.x(middle), c.axis.x(high)
		if !(0 <= a && a <= b && b <= d && d <= 100) {
			rt.Fatalf("%v, %v, %v stand at %v, %v, %v", low, middle, high, a, b, d)
		}
		if len(c.Ticks) < 2 || len(c.Ticks) > 10 {
			rt.Fatalf("%d marks from %v to %v", len(c.Ticks), low, high)
		}
		for _, mark := range c.Ticks {
			if math.IsNaN(mark.X) || mark.X < 0 || mark.X > 100 {
				rt.Fatalf("a mark at %v", mark)
			}
		}
	})
}

// Numbers are written as people write them.
func TestPlainNumbers(t *testing.T) {
	tenth := 0.1
	for v, want := range map[float64]string{
		0: "0", 3 * tenth: "0.3", 0.00001: "0.00001", 2.5: "2.5", 9999: "9999", 20000: "20000", 1e6: "1000000", 123456.7: "123457",
	} {
		if got := plain(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0.000 s", 0.12345: "0.123 s", 0.27: "0.270 s", 2: "2.00 s", 10: "10.0 s", 99.94: "99.9 s", 100: "100 s", 1234.6: "1235 s"} {
		if got := seconds(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}

// What a bar is compared with stands where the value would: a reference at its
// figure, a ratio that the paper claims at so many times the other's measured
// one, and the axis reaches to all of them.
func TestMarksStandWhereTheValueWould(t *testing.T) {
	r := everything("")
	r.Summary[0].Policy = "quick" // no line of the oracle here
	r.Summary[0].Reference, r.Summary[2].Reference = nil, nil
	r.judge([]sim.Claim{
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "slow"}, Than: &sim.Side{Policy: "fast"}, Least: 4, Most: 4},
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "quick"}, Least: 600, Most: 600},
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "absent"}, Least: 9e9, Most: 9e9},
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "slow"}, Than: &sim.Side{Policy: "absent"}, Least: 9e9, Most: 9e9},
		{Figure: "ttft_p90_ms", Side: sim.Side{Policy: "slow"}, Least: 45, Most: 90},
	})
	l := lineUp(r)
	c := l.bars()
	want := map[string][]mark{
		"quick": {{false, 75, 75, "paper: 600.00"}},
		"slow":  {{true, 18.8, 18.8, "reference: 150"}, {false, 100, 100, "paper: 4.00 times that of fast"}},
		"fast":  {{false, 18.8, 22.5, "paper: 1.50 to 1.80 times that of slow"}},
	}
	for _, row := range c.Rows {
		if len(row.Marks) != len(want[row.Policy]) {
			t.Fatalf("%s has the marks %+v", row.Policy, row.Marks)
		}
		for i, m := range row.Marks {
			if m != want[row.Policy][i] || !strings.Contains(row.Tip, m.Tip) {
				t.Errorf("%s has the mark %+v, want %+v; its tip is %s", row.Policy, m, want[row.Policy][i], row.Tip)
			}
		}
	}
	if legend := strings.Join(c.Legend, ". "); !strings.Contains(legend, "◆") || !strings.Contains(legend, "▾") || c.Oracle != 0 {
		t.Errorf("the legend is %s, the oracle at %v", legend, c.Oracle)
	}
	times := l.boxes("", "ttft_p90_ms", func(f *sim.Figures) *sim.Percentiles { return f.TTFT })
	for _, row := range times.Rows {
		if marks := row.Marks; row.Policy == "slow" && (len(marks) != 2 || marks[1].From != 50 || marks[1].To != 100) {
			t.Errorf("the times of slow have the marks %+v", marks)
		}
	}
}
