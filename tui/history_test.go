package tui

import "testing"

func TestOnlySnapshotIsNotHistory(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.poll(0)
	d.press("<")
	d.lacks("HISTORY")
}
