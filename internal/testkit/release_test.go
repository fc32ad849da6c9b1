package testkit

import "testing"

// A process that has used its share of the blocks continues with those of tests that have ended, not with those of tests
// that may be between two listeners.
func TestReleasedBlocksAreUsedFirst(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // of the locks: other tests need the real ones
	b := &portBlocksOf{name: "released", count: 6}
	first, second, third := b.next(), b.next(), b.next()
	b.release(second)
	if got := b.next(); got != second {
		t.Errorf("got %d, want the released %d; the others are %d and %d", got, second, first, third)
	}
	if got := b.next(); got != first {
		t.Errorf("got %d, want %d, which was not used for longest", got, first)
	}
}
