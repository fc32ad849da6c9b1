// Package remote is a provider that acts in its cloud by way of a machine of the
// service there: keys of a cloud never leave it, and so the controller of a service asks
// machines with an identity of that cloud to list, launch and terminate for it.
//
// Read wire.go first, which is what is said; then client.go, the provider, and
// handler.go, the machine that carries it out.
package remote
