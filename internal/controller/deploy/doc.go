// Package deploy deploys the machines of a service in clouds and on this computer, deletes them, and
// finds machines without a service. It combines the desired state of provision/cloud with the
// providers' observed state.
//
// Read deployer.go first (planning changes), then up.go (applying them, with fallback to other
// regions), down.go and orphans.go. deploy.go and delivery.go contain the configuration of each machine,
// called its deployment, and how it is delivered; bundle.go is what controllers receive in addition.
// reconciler.go and actuator.go are the part that runs in the controller: it observes (observation.go),
// replaces machines (dead.go, replacement.go, fallback.go), replaces unhealthy replicas (unhealthy.go, replica_record.go)
// and changes their number (scaling.go, drain.go). controllers.go chooses the machines that run a controller.
package deploy
