package tui

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/telemetry"
)

// The sparklines and the chart end at the shown snapshot, also after newer ones have arrived.
func TestTrendStaysAtTheShownSnapshot(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	watch(d, normal())
	d.press("<")
	before := d.model.screen.history.last
	d.now = d.now.Add(time.Minute)
	newer := normal()
	newer.At = newer.At.Add(time.Minute)
	d.fetch.snapshot = newer
	d.poll(0)
	if last := d.model.screen.history.last; last != before {
		t.Errorf("the last cell drawn is %d, want %d as before the newer snapshot", last, before)
	}
	d.press("esc")
	if last := d.model.screen.history.last; last != before+13 {
		t.Errorf("live, the last cell drawn is %d, want %d", last, before+13)
	}
}

func TestOnlySnapshotIsNotHistory(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.poll(0)
	d.press("<")
	d.lacks("HISTORY")
}

// A fast replay has longer cells: their times are those of the recording.
func TestCellsOfFastReplayAreLonger(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.model = New(t.Context(), Config{Fetcher: d.fetch, Interval: time.Second, Theme: d.model.screen.theme, Now: func() time.Time { return d.now }, ReplaySpeed: 5})
	d.send(tea.WindowSizeMsg{Width: 120, Height: 40})
	for i := range 40 {
		s := normal()
		s.At = noon.Add(time.Duration(i) * 5 * time.Second)
		d.fetch.snapshot = s
		d.poll(time.Second)
	}
	h := d.model.screen.history
	values, _ := d.model.screen.chartValues(d.model.screen.shownRegions(), 10)
	known := 0
	for _, v := range values {
		if v >= 0 {
			known++
		}
	}
	if h.cell != 25*time.Second || known != 8 { // 195 s
		t.Errorf("%d cells of %s have values, want 8 of 25s", known, h.cell)
	}
	d.press("2")
	d.wants("last 47m", "11:16")
}

// In a replay, a step of a minute is one of the recording, at any speed.
func TestMinuteStepsOfReplay(t *testing.T) {
	for speed, oneBack := range map[float64]string{0.5: "12:00:39", 5: "12:15:35", 20: "13:05:20"} {
		d := newDesk(t, 120, 40, normal())
		d.model = New(t.Context(), Config{Fetcher: d.fetch, Interval: time.Second, Theme: d.model.screen.theme, Now: func() time.Time { return d.now }, ReplaySpeed: speed})
		d.send(tea.WindowSizeMsg{Width: 120, Height: 40})
		for i := range 200 {
			s := normal()
			s.At = noon.Add(time.Duration(float64(i) * speed * float64(time.Second)))
			d.fetch.snapshot = s
			d.poll(time.Second)
		}
		d.press("{")
		d.wants("HISTORY " + oneBack)
		d.press("}")
		d.lacks("HISTORY")
	}
}

// Snapshots without a time, as of a partial response, are drawn without a trend.
func TestSnapshotWithoutTimeHasNoTrend(t *testing.T) {
	s := normal()
	s.At = time.Time{}
	d := newDesk(t, 120, 40, s)
	d.poll(0)
	d.wants("us-east-1")
}

// memory returns the bytes that a value refers to, without those of the value itself.
func memory(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer:
		if !v.IsNil() {
			return int(v.Type().Elem().Size()) + memory(v.Elem())
		}
	case reflect.Slice:
		n = v.Len() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			n += memory(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += memory(v.Field(i))
		}
	}
	return n
}

// The estimated size of a snapshot is about what it occupies, whatever it has most of.
func TestSnapshotSizeCountsEveryList(t *testing.T) {
	with := func(change func(*telemetry.Snapshot)) *telemetry.Snapshot {
		s := normal()
		s.Regions = slices.Clone(s.Regions)
		change(s)
		return s
	}
	const n = 1000
	full := withBatches()
	snapshots := map[string]*telemetry.Snapshot{
		"normal": normal(), "replicas": crowd(3, n),
		"balancers": with(func(s *telemetry.Snapshot) { s.Regions[0].Balancers = slices.Repeat(s.Regions[0].Balancers, n) }),
		"models":    with(func(s *telemetry.Snapshot) { s.Regions[0].Models = slices.Repeat(s.Regions[0].Models, n) }),
		"keys":      with(func(s *telemetry.Snapshot) { s.Regions[0].Keys = slices.Repeat(s.Regions[0].Keys, n) }),
		"GPUs": with(func(s *telemetry.Snapshot) {
			s.Regions[0].Replicas[0].GPUs = slices.Repeat(s.Regions[0].Replicas[0].GPUs, n)
		}),
		"batches":  with(func(s *telemetry.Snapshot) { s.Batches = slices.Repeat(full.Batches, n) }),
		"events":   with(func(s *telemetry.Snapshot) { s.Events = slices.Repeat(s.Events, n) }),
		"forecast": with(func(s *telemetry.Snapshot) { s.Forecast = slices.Repeat(s.Forecast, n) }),
		"targets":  with(func(s *telemetry.Snapshot) { s.Targets = slices.Repeat(s.Targets, n) }),
		"prices": with(func(s *telemetry.Snapshot) {
			s.Prices = slices.Repeat([]telemetry.Price{{Region: "aws/us-east-1", GPU: "L4"}}, n)
		}),
		"alerts": with(func(s *telemetry.Snapshot) {
			s.Alerts = slices.Repeat([]telemetry.Alert{{Message: strings.Repeat("m", 80), NextStep: strings.Repeat("n", 80)}}, n)
		}),
		"donations": with(func(s *telemetry.Snapshot) { s.Donations = slices.Repeat(ownMachines().Donations, n) }),
		"changes":   with(func(s *telemetry.Snapshot) { p := *s.Plan; p.Changes = slices.Repeat(p.Changes, n); s.Plan = &p }),
	}
	for name, s := range snapshots {
		got, want := snapshotSize(s), memory(reflect.ValueOf(s))
		if got < want*2/3 || got > 2*want {
			t.Errorf("%s: estimated as %d bytes, occupies %d", name, got, want)
		}
	}
}
