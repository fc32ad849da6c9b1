// Package eval runs the simulator for several policies and seeds side by side and joins the results.
// The order of rows does not depend on which run finishes first.
//
// Read run.go first (the plan of a comparison), then report.go (its result), paper.go (reference values
// from papers), table.go and html.go (output). sage.go connects the scaling strategies of package plan
// to the simulator's fleets (sage_scaler.go).
package eval
