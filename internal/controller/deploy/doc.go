// Package deploy deploys the machines of a service in clouds, deletes them, and finds machines
// without a service. It combines the desired state of provision/cloud with the providers' observed
// state.
//
// Read deployer.go first (planning changes), then up.go (applying them, with fallback to other
// regions), down.go and orphans.go; deploy.go and delivery.go contain the deployments of machines
// and their delivery. bundle.go is the additional content for the controller's machine,
// reconciler.go and actuator.go the part that runs in the controller.
package deploy
