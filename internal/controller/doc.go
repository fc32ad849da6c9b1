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
// attached), leader.go (which runs rounds while the lease is held), reload.go (which reloads
// the configuration at run time) and run.go (the process).
//
// For capacity read control_loop.go. An iteration first runs the MachineReconciler, which makes its own
// observation. The iteration then observes the balancers once (observe.go), and runs the planner
// (planner.go) and the scaler (scaler.go) on that observation. The files of the scaler are:
//   - scaling_inputs.go: its inputs
//   - mismatch.go: the difference between the running replicas and the plan
//   - scale_to_zero.go: the start of the first replica of a model without a minimum, and the removal of the last ones
//   - changes.go: the changes of particular replicas (CapacityChange), which follow from the strategy's decisions. An
//     Actuator applies the changes.
//   - scaling_action.go: the events about these changes. The last events are part of the state that the scaler publishes.
//
// Three words have two meanings. A plan.Scaling is a decision of the strategy; a telemetry.Scaling is the published state
// of the scaler. A target here is a planned number of replicas (plan.HourlyTarget), not the target of a request. A Donation
// also marks replicas that the scaler removes without donating them: see CurrentReplica.Donation.
//
// Package deploy implements MachineReconciler and Actuator.
//
// The control plane consists of the controllers and the store: standby.go has the controllers that wait for the lease,
// store_member.go this controller's member of the store, backup.go the scheduled backups and alerts.go the alerts.
package controller
