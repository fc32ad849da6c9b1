//go:build !race

package testkit

// RaceDetector says whether the program was built with the race detector.
const RaceDetector = false
