// Package cloud computes the desired state of a service from its service.yaml: the machines, the offerings for
// each machine in the order of launch attempts, and the machines' firewalls and identities. In a local region, balancers
// and replicas are processes on this computer. In a static region the engines run on machines that skyserve does not
// launch; its balancers are processes on this computer, if the service has no machines in clouds. The package only
// computes; the providers create the objects.
//
// Read layout.go first, then replicas.go (the desired replicas of a region, and the fallback regions for a region
// without capacity), replica_ids.go (their ids), counts.go (their GPUs and capacity types), hedge.go (spot replicas
// beyond the desired number), and offers.go, reserved.go and reservations.go (the offerings of a replica).
//
// control_machines.go chooses the machines that run a controller, and the balancers that may launch others. budget.go,
// quota.go and local_ssd.go check service.yaml against prices, quotas and machine types. endpoints.go has the ports.
package cloud
