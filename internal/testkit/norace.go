//go:build !race

package testkit

// RaceDetector reports whether the program was built with the race detector.
const RaceDetector = false
