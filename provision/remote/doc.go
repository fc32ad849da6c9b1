// Package remote is a provider that calls a cloud through the service's machines in that cloud. Credentials
// of a cloud never leave the cloud. So the controller of a service delegates list, launch and terminate to
// machines with an identity in that cloud.
//
// Read wire.go (the messages) first, then client.go (the provider), then handler.go, which executes the
// calls on the machine.
package remote
