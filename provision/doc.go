// Package provision holds what exists for a service on machines and in clouds
// (balancers, replicas, the controller) and how it is changed into what is
// wanted. Diff is pure and decides; Apply carries the decision out through a
// Provider. Every step is safe to repeat, so a crash between any two steps is
// mended by taking the difference and applying it again.
//
// Read object.go first, then diff.go, then apply.go. The providers live in the
// packages below this one.
package provision
