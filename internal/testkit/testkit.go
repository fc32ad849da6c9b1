// Package testkit selects which tests run when. `go test -short ./...` skips tests that call
// Slow, for quick feedback between edits. `make race` runs all tests under the race detector
// except those that call NotUnderRace. Plain `go test ./...` skips only tests that need a flag of
// their own: see `make long`. LocalPort and Eventually are helpers for tests of concurrent
// programs.
package testkit

import "testing"

// Slow skips a test with -short: it starts processes, waits for the clocks of other programs,
// or computes for more than a second.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: skipped by -short")
	}
}

// Stride is the step of a loop over similar cases: 1, or underRace under the race detector, which needs
// ten times as long and learns nothing from the 500th case that it did not learn from the 100th.
func Stride(underRace int) int {
	if RaceDetector {
		return underRace
	}
	return 1
}

// NotUnderRace skips a test under the race detector, with a reason.
func NotUnderRace(t testing.TB, why string) {
	t.Helper()
	if RaceDetector {
		t.Skip("skipped under the race detector: " + why)
	}
}
