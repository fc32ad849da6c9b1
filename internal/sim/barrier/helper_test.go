package barrier

import (
	"pgregory.net/rapid"
)

// draw draws a number from lo to hi.
type draw func(lo, hi int) int

func drawRapid(t *rapid.T) draw {
	return func(lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, "n") }
}
