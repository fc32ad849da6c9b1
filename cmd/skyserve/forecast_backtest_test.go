package main

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"skyserve/forecast"
)

func of(v float64) *float64 { return &v }

// backtested returns one series per weighted error.
func backtested(region string, wapes ...float64) []backtestSeries {
	s := backtestSeries{Series: region + " m IW-F", Model: "m", Tier: "IW-F", Region: region, Horizon: "1h", StepS: 60, Unit: "prompt tokens"}
	for _, w := range wapes {
		s.Rows = append(s.Rows, forecast.BacktestRow{Forecaster: "har", WAPE: of(w), RMSE: of(440843), Windows: 7})
	}
	return []backtestSeries{s}
}

// Figures are aligned, unknown ones are dashes, and the region is omitted if no series has one.
func TestBacktestTable(t *testing.T) {
	for region, name := range map[string]string{"all": "m fast ", "eu": "eu m fast "} {
		var b bytes.Buffer
		if err := writeBacktest(&b, outputFormat{kind: outputText}, backtested(region, 0.125, 320.5)); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(b.String(), "\n")
		head, first, second := lines[0], lines[1], lines[2]
		if !strings.HasPrefix(first, name) || !strings.Contains(first, "  12.5%") || !strings.Contains(second, " 32050%") || !strings.Contains(first, "440.84k") {
			t.Errorf("%s:\n%s", region, b.String())
		}
		end := strings.Index(head, "WAPE") + len("WAPE")
		if first[:end][end-5:] != "12.5%" || second[:end][end-6:] != "32050%" {
			t.Errorf("%s: columns are not aligned:\n%s", region, b.String())
		}
		if !strings.Contains(head, " WAPE 95 % ") || strings.Contains(b.String(), "%!") {
			t.Errorf("%s: the head is %q", region, head)
		}
	}
}

// A bar is cut off only if it is much taller than the others.
func TestBarLimit(t *testing.T) {
	if got := barLimit(backtested("all", 0.2, 0.3, 0.5)); !math.IsInf(got, 1) {
		t.Errorf("bars of similar height are cut at %g", got)
	}
	if got := barLimit(backtested("all", 0.2, 0.3, 0.31, 6)); got != 93 {
		t.Errorf("cut at %g, want three times the median", got)
	}
	if got := barLimit(nil); !math.IsInf(got, 1) {
		t.Errorf("no bar is cut at %g", got)
	}
	var b bytes.Buffer
	if err := plotBacktest(&b, "svg", backtested("all", 0.2, 0.3, 0.31, 6)); err != nil || !strings.Contains(b.String(), ">600<") {
		t.Errorf("the bar that is cut off has no label (%v)", err)
	}
}

// The shares of a backtest, and the speed of a simulation, have the singular for one.
func TestWindowsAndRequestsAreCounted(t *testing.T) {
	winner := "naive"
	for got, want := range map[string]string{
		describeWinner(forecast.BacktestReport{WithLoad: 1, Windows: 1, Winner: &winner}): "naive (load in 1 of 1 window)",
		describeWinner(forecast.BacktestReport{WithLoad: 0, Windows: 2}):                  "no result, load in 0 of 2 windows",
		simSpeed(1, 500): "1 request in 0.5 s: 2 per second",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
