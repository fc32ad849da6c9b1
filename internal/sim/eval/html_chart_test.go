package eval

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/sim"
	"skyserve/plan/chart"
)

// plain and seconds format numbers.
func TestNumberFormats(t *testing.T) {
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

// Comparison values use the chart's scale: a reference at its value, a claimed ratio multiplied by the
// other policy's measured value. The axis covers all of them.
func TestChartsShowReferencesAndClaims(t *testing.T) {
	r := fullReport("")
	r.Summary[0].Policy = "quick" // no line of the oracle in this chart
	r.Summary[0].Reference, r.Summary[2].Reference = nil, nil
	r.addClaims([]sim.Claim{
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "slow"}, Than: &sim.Side{Policy: "fast"}, Min: 4, Max: 4},
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "quick"}, Min: 600, Max: 600},
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "absent"}, Min: 9e9, Max: 9e9},
		{Figure: "output_tokens_per_second", Side: sim.Side{Policy: "slow"}, Than: &sim.Side{Policy: "absent"}, Min: 9e9, Max: 9e9},
		{Figure: "ttft_p90_ms", Side: sim.Side{Policy: "slow"}, Min: 45, Max: 90},
	})
	l := newLineup(r)
	c := l.bars()
	want := map[string][]chart.Comparison{
		"quick": {{From: 600, To: 600, Tip: "paper: 600.00"}},
		"slow":  {{Reference: true, From: 150, To: 150, Tip: "reference: 150"}, {From: 800, To: 800, Tip: "paper: 4.00 times that of fast"}},
		"fast":  {{From: 150, To: 180, Tip: "paper: 1.50 to 1.80 times that of slow"}},
	}
	for _, row := range c.BarChart.Rows {
		if !slices.Equal(row.Comparisons, want[row.Name]) {
			t.Errorf("%s is compared with %+v, want %+v", row.Name, row.Comparisons, want[row.Name])
		}
	}
	if c.X.High != 800 {
		t.Errorf("the axis reaches to %v", c.X.High)
	}
	if legend := strings.Join(c.Legend, ". "); !strings.Contains(legend, "◆") || !strings.Contains(legend, "▾") || c.Limit != 0 {
		t.Errorf("the legend is %s, the oracle at %v", legend, c.Limit)
	}
	times := l.boxes("", "ttft_p90_ms", func(f *sim.RunFigures) *sim.Percentiles { return f.TTFT })
	for _, row := range times.BarChart.Rows {
		if row.Name == "slow" && (len(row.Comparisons) != 2 || row.Comparisons[1].From != 0.045 || row.Comparisons[1].To != 0.09) {
			t.Errorf("the times of slow are compared with %+v", row.Comparisons)
		}
	}
}
