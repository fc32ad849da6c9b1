// Package eval compares: it runs the simulator for several policies and seeds
// side by side and joins what they measured, each row in its fixed place
// whatever ran first.
//
// Read run.go first (what is run), then report.go (what comes of it), paper.go
// (what a paper says of it), table.go and html.go (how it is shown). sage.go joins
// package plan's scaling strategies to the simulator's fleets (sage_scaler.go).
package eval
