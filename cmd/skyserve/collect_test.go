package main

import "testing"

// Between two collections garbage has room of 64 MB, or of an eighth of what is
// in use where that is more; a young process may multiply.
func TestRoomForGarbage(t *testing.T) {
	for _, c := range []struct {
		inUse uint64
		want  int
	}{
		{0, 1600}, {1 << 20, 1600}, {16 << 20, 400}, {64 << 20, 100}, {256 << 20, 25}, {512 << 20, 12}, {4 << 30, 12},
	} {
		if got := gcPercent(c.inUse); got != c.want {
			t.Errorf("%d MB in use: %d %%, want %d %%", c.inUse>>20, got, c.want)
		}
	}
}
