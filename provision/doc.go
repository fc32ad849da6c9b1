// Package provision describes the objects of a service on machines and in clouds (balancers, replicas,
// the controller) and changes them into the desired state. Diff is a pure function that computes the
// changes; Apply executes them through a Provider. Every step is idempotent: to recover from a crash
// between any two steps, run Diff and Apply again.
//
// Read object.go first, then diff.go, then apply.go. The providers are in the packages below this one.
package provision
