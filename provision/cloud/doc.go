// Package cloud computes the desired state of a service from its service.yaml: the machines, the offerings for
// each machine in the order of launch attempts, and the machines' firewalls and identities. The machines of a
// local or static region are processes on this computer. The package only computes; the providers create the
// objects.
//
// Read layout.go first, then replicas.go (the desired replicas of a region, and the fallback regions for a
// region without capacity), then offers.go (the offerings of a replica).
package cloud
