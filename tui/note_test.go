package tui

import (
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

// Enter without a selected row says what to do.
func TestOpenWithoutSelection(t *testing.T) {
	for _, view := range []string{"1", "2", "3", "8", "9", "$"} {
		d := deskIn(t, 80, 24, normal(), view, "enter")
		d.wants("open: select a row with j or k")
		d.press("esc")
		d.lacks("open: select a row")
	}
}

// Keys without a row to act on say what to do, and that there is no row if there is none.
func TestHintsWithoutSelection(t *testing.T) {
	s := normal()
	s.Plan, s.Forecast = nil, nil
	deskIn(t, 80, 24, s, "5", "enter").wants("open: there are no rows")
	deskIn(t, 80, 24, normal(), "1", "l").wants("logs: select a region")
	deskIn(t, 80, 24, normal(), "2", "l").wants("logs: select a replica")
}

// A load that deviates from its forecast is shown before the plan and the peaks. Parts that
// exceed the width are omitted.
func TestNoteShowsForecastAndPlan(t *testing.T) {
	s := normal()
	s.Forecast = []telemetry.LoadForecast{
		{Region: "aws/us-east-1", StepSeconds: 300, MeanTPS: make([]float64, 12), Peak: telemetry.Peak{P95: 3400}, Deviation: "5.0x the forecast, for 12m (burst)"},
		{Region: "gcp/europe-west4", Peak: telemetry.Peak{P95: 120}},
	}
	const left = "load deviates from forecast: us-east-1 5.0x the forecast, for 12m (burst)"
	const plan = "plan of 12:00: us-east-1 +1 L4, ap-northeast-1 -1 L4; $7.46/h -> $7.10/h"
	const peak = "forecast for the next 1h: peak p95 us-east-1 3400, europe-west4 120 uncached prompt tok/s"
	note := func(width int) string {
		return strings.Split(Render(s, nil, width, 0, mustTheme(NewTheme(ThemePlain, true))), "\n")[1]
	}
	wide := note(0)
	at := []int{strings.Index(wide, left), strings.Index(wide, plan), strings.Index(wide, peak)}
	if at[0] < 0 || at[1] < at[0] || at[2] < at[1] {
		t.Errorf("got %q", wide)
	}
	if narrow := note(100); !strings.Contains(narrow, left) || strings.Contains(narrow, "plan") {
		t.Errorf("got %q", narrow)
	}
}
