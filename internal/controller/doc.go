// Package controller decides which balancer serves which replica and keeps it
// so. One controller acts at a time, by a lease with a fencing token; its
// decisions are kept in the store, numbered, and balancers refuse one that is
// older than what they hold. Traffic does not need it: balancers start with
// their replicas from their own configuration and go on with the last state
// they saw.
//
// Read assign.go first: it is the decision, and pure. Then round.go, one turn of
// probing, deciding, publishing and mending; tenure.go, turn after turn while
// the lease is held; reload.go, other replicas while it runs; and run.go, the
// process around them. Of capacity: review.go, forecasts and prices joined into a
// plan, review_watch.go, load that leaves its forecast, and planner.go, both by the
// clock. A plan is carried out by rollout, on request.
package controller
