// Package remote is a provider that calls its cloud through a machine of the service there. Credentials
// of a cloud never leave it, so the controller of a service delegates list, launch and terminate to
// machines with an identity in that cloud.
//
// Read wire.go first, the messages; then client.go, the provider, and handler.go, which executes the
// calls on the machine.
package remote
