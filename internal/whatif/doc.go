// Package whatif compares: it runs the simulator for several policies and seeds
// side by side and joins what they measured, each row in its fixed place
// whatever ran first.
//
// Read run.go first (what is run), then report.go (what comes of it) and table.go.
package whatif
