// Package provision describes the objects of a service on this computer and in clouds (balancers,
// replicas, the name server, and their prerequisites) and changes them into the desired state. The
// controller is not an object: it runs on balancers' machines. Diff is a pure function that computes the
// changes; Apply executes them through a Provider. Every step is idempotent: to recover from a crash
// between any two steps, run Diff and Apply again.
//
// Read object.go first, then diff.go, then apply.go. The providers are in the packages below this one.
package provision
