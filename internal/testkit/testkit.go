// Package testkit says which tests run when. `go test -short ./...` is the fast tier, for
// between two edits: tests that call Slow are left out there, and say so. `make race` runs
// everything under the race detector but tests that call NotUnderRace. Plain `go test ./...`
// leaves nothing out. LocalPort and Eventually are what such tests share.
package testkit

import "testing"

// Slow leaves a test out of the fast tier: it starts processes, waits for clocks of other
// programs, or computes for more than a second.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
}

// NotUnderRace leaves a test out under the race detector, and says why.
func NotUnderRace(t testing.TB, why string) {
	t.Helper()
	if RaceDetector {
		t.Skip("left out under the race detector: " + why)
	}
}
