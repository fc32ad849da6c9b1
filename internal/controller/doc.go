// Package controller decides which balancer serves which replica and keeps it
// so. One controller acts at a time, by a lease with a fencing token; its
// decisions are kept in the store, numbered, and balancers refuse one that is
// older than what they hold. Traffic does not need it: balancers start with
// their replicas from their own configuration and go on with the last state
// they saw.
//
// Read assign.go first: it is the decision, and pure. Then round.go, one round of
// probing, deciding, publishing and repairing; lead.go, round after round while
// the lease is held; reload.go, other replicas while it runs; and run.go, the
// process around them.
//
// Of capacity read reconcile.go: the loop that observes the service once, has machines
// replaced (Machines, which fleet implements), planned for (planner.go, by package plan) and
// scaled (scaler.go, by a strategy of package plan; scaling_inputs.go is what it sees, moves.go what
// comes of it, mismatch.go how what runs differs from the plan). An Actuator carries
// changes out; fleet has the one there is.
package controller
