// Package controller assigns replicas to balancers and scales the service. One controller is the
// leader at a time, through a lease with a fencing token. The leader publishes each assignment
// of replicas with an epoch, and balancers reject changes of an earlier epoch. Requests do not
// depend on the controller: balancers start with the replicas of their own configuration and keep
// serving with the last known state.
//
// The configuration of a replica names its primary balancer. While that balancer is dead, the nearest
// live balancer adopts the replica; the replica returns when its primary balancer responds again.
//
// Read assign.go first: it computes the assignment, in a pure function. Then read round.go (one
// round: probe balancers, assign replicas, publish the assignment, correct what balancers have
// attached), leader.go (which runs rounds while the lease is held), reload.go (which reloads the
// list of replicas at run time) and run.go (the process).
//
// For capacity read control_loop.go: an iteration runs the reconciler of machines (Machines, which
// package deploy implements and which makes its own observation). It then observes the balancers
// once, and runs the planner (planner.go, with package plan) and the scaler (scaler.go, with a
// strategy of package plan) on that observation. scaling_inputs.go contains the scaler's inputs,
// changes.go its changes, scale_to_zero.go the first and last replicas of models without a minimum, mismatch.go the difference between running replicas and the plan. An
// Actuator applies changes; package deploy contains the implementation.
package controller
