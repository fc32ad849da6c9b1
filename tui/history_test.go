package tui

import (
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
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

// Snapshots without a time, as of a partial response, are drawn without a trend.
func TestSnapshotWithoutTimeHasNoTrend(t *testing.T) {
	s := normal()
	s.At = time.Time{}
	d := newDesk(t, 120, 40, s)
	d.poll(0)
	d.wants("us-east-1")
}
