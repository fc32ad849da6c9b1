// Package fleet brings the machines of a service up in clouds, takes them down, and
// finds those that no service owns. It joins what provision/cloud wants with what
// the providers say there is.
//
// Read fleet.go first (what would change), then up.go (changing it, and moving on
// to other regions), down.go and orphans.go; deploy.go and handover.go, what machines
// are to run and how they get it. bundle.go is what the machine of the controller gets
// beyond that, reconciler.go and actuator.go what the controller does with it.
package fleet
