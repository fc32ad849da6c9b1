package core

import (
	"testing"
	"time"
)

// A longer wait holds work for the night; what is due goes all the same.
func TestDeferredWaitIsAShareOfTheDeadline(t *testing.T) {
	for _, c := range []struct {
		wait  float64
		hours float64
	}{{0, 10}, {0.5, 12}, {0.83, 19.92}} {
		d := DeferredRule{OneBelow: 0.6, TwoBelow: 0.5, Wait: c.wait}
		if got := d.urgent(24 * time.Hour).Hours(); got < c.hours-0.01 || got > c.hours+0.01 {
			t.Errorf("wait %g: urgent after %g h, want %g", c.wait, got, c.hours)
		}
	}
}
