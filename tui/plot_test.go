package tui

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// A cell of a plot is the mean of the known steps in its time, or the value of the step
// that contains it. It is empty before the first step and after the last.
func TestMeanOver(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		values     []float64
		from, cell time.Duration
		want       float64
	}{
		{[]float64{1, 3, 5, 7}, 2 * time.Minute, 2 * time.Minute, 6},
		{[]float64{1, 3, nan, 7}, time.Minute, 2 * time.Minute, 3},
		{[]float64{1, nan}, time.Minute, time.Minute, nan},
		{[]float64{4, 5}, 90 * time.Second, 20 * time.Second, 5},
		{[]float64{4}, -2 * time.Minute, time.Minute, nan},
		{[]float64{4}, 2 * time.Minute, time.Minute, nan},
		{nil, 0, time.Minute, nan},
	} {
		if got := meanOver(c.values, time.Minute, c.from, c.cell); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v from %v over %v: %v, want %v", c.values, c.from, c.cell, got, c.want)
		}
	}
	if got := meanOver([]float64{1}, 0, 0, time.Minute); !math.IsNaN(got) {
		t.Errorf("without a step: %v", got)
	}
}

// Events are marked at their times, below the load; those outside the plot are not.
func TestPlotMarks(t *testing.T) {
	plain := mustTheme(NewTheme(ThemePlain, true))
	p := Plot{
		Past: &LoadSeries{Start: noon.Add(-time.Hour), Step: time.Minute, TPS: make([]float64, 60)}, PastWidthShare: 0.5,
		Mean: make([]float64, 60), From: noon, Step: time.Minute, Zone: time.UTC,
	}
	without := p.Draw(&plain, 60+axisWidth+1, 10)
	p.Marks = []PlotMark{{noon.Add(-3 * time.Hour), "x"}, {noon.Add(-time.Hour), "+"}, {noon.Add(-30 * time.Minute), "-"}, {noon.Add(-29 * time.Minute), "o"}}
	drawn := p.Draw(&plain, 60+axisWidth+1, 10)
	if len(drawn) != len(without) {
		t.Fatalf("%d lines with marks, %d without", len(drawn), len(without))
	}
	line := drawn[len(drawn)-2]
	if want := strings.Repeat(" ", axisWidth+1) + "+" + strings.Repeat(" ", 14) + "o"; line != want {
		t.Errorf("got %q, want %q", line, want)
	}
}

// A history that is shorter than the width for it leaves the rest to the forecast.
func TestPlotOfShortHistory(t *testing.T) {
	nan := math.NaN()
	for _, tt := range []struct {
		name string
		past []float64
		want int // columns of the past
	}{
		{"none", nil, 0},
		{"unknown", slices.Repeat([]float64{nan}, 180), 0},
		{"3 minutes of 3 hours", append(slices.Repeat([]float64{nan}, 177), 1, 2, 3), 4},
		{"20 minutes", make([]float64, 20), 25},
		{"more than fits", make([]float64, 180), 60},
	} {
		p := Plot{
			Past: &LoadSeries{Start: noon.Add(-time.Duration(len(tt.past)) * time.Minute), Step: time.Minute, TPS: tt.past}, PastWidthShare: 0.6,
			Mean: make([]float64, 60), From: noon, Step: time.Minute, Zone: time.UTC,
		}
		past := 0
		for _, c := range p.columns(100) {
			if c.at.Before(noon) {
				past++
			}
		}
		if past != tt.want {
			t.Errorf("%s: %d columns, want %d", tt.name, past, tt.want)
		}
	}
}

// The forecast view marks the scaling of the shown model and region.
func TestForecastShowsScaling(t *testing.T) {
	s := normal()
	llama := s.Forecast[0].Model
	s.Events = []telemetry.Event{
		{At: noon.Add(-20 * time.Minute), Kind: telemetry.EventLaunch, Region: "aws/us-east-1", Model: llama},
		{At: noon.Add(-10 * time.Minute), Kind: telemetry.EventApply},
		{At: noon.Add(-10 * time.Minute), Kind: telemetry.EventLaunch, Region: "gcp/europe-west4", Model: llama},
		{At: noon.Add(-5 * time.Minute), Kind: telemetry.EventReload, Region: "aws/us-east-1"},
	}
	d := deskIn(t, 120, 40, s, "4")
	d.wants("+ added or undrained  a applied")
	d.lacks("x lost")
	marks := d.model.screen.scalingMarks(&s.Forecast[0])
	if len(marks) != 2 || marks[0].Sign != "+" || marks[1].Sign != "a" {
		t.Errorf("got %+v", marks)
	}
	// An event before the plotted time is neither drawn nor explained.
	s.Events = []telemetry.Event{{At: noon.Add(-90 * time.Minute), Kind: telemetry.EventTermination, Region: "aws/us-east-1", Model: llama}}
	deskIn(t, 120, 40, s, "4").lacks("drained or removed")
	s.Events = nil
	d = deskIn(t, 120, 40, s, "4")
	d.lacks("+ added")
}
