package tui

import (
	"testing"
	"time"
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
