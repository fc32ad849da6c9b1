// Package plan decides how many replicas of each model run on each GPU in each
// region for the next hour: SageServe's integer programme (section 5 of the
// paper), its exact solver, and the proposal that people read. It is pure: no
// clock, no randomness, no I/O; effort is bounded by counted work.
//
// Read problem.go first (the programme), then solve.go (the order of attack),
// block.go (one model in one region), model.go and search.go (one model over its
// regions), caps.go, branch.go and tighten.go (shared capacity), and proposal.go
// (the answer in words).
package plan
