package main

import (
	"runtime/debug"
	"testing"

	"skyserve/internal/service"
)

// The memory limit bounds the heap, unless GOMEMLIMIT is set.
func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "7GiB")
	limitMemory(5 * service.GiB)
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit is %d, want the environment's %d", got, before)
	}
	t.Setenv("GOMEMLIMIT", "")
	limitMemory(5 * service.GiB)
	if got := debug.SetMemoryLimit(-1); got != 4<<30 {
		t.Errorf("the limit is %d, want four fifths of 5 GiB", got)
	}
}

// Between two collections, garbage may grow to 64 MB, or 24 MB in a process with a store, or to an eighth of the
// live memory, whichever is more.
func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		inUse, garbage uint64
		want           int
	}{
		{0, 64, 1600}, {1, 64, 1600}, {16, 64, 400}, {64, 64, 100}, {256, 64, 25}, {512, 64, 12}, {4 << 10, 64, 12}, {48, 24, 50}, {192, 24, 12}, {512, 24, 12},
	} {
		if got := gcPercent(c.inUse<<20, c.garbage<<20); got != c.want {
			t.Errorf("%d MB in use: %d %%, want %d %%", c.inUse, got, c.want)
		}
	}
}

// The garbage that is allowed follows the largest live memory of the last samples: one collection that
// finds less does not raise GOGC.
func TestRecentMax(t *testing.T) {
	var m recentMax
	for i, want := range []uint64{10, 60, 60} {
		if got := m.add([]uint64{10, 60, 20}[i]); got != want {
			t.Errorf("sample %d: %d, want %d", i, got, want)
		}
	}
	for range liveWindow - 2 {
		m.add(5)
	}
	if got := m.add(5); got != 20 {
		t.Errorf("after the window: %d, want 20", got)
	}
}
