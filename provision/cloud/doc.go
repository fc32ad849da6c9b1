// Package cloud computes the desired state of a service in the clouds from its service.yaml: the
// machines, the offerings for each in the order of launch attempts, and the firewalls and identities
// that they need. It is pure; the providers create the objects.
//
// Read layout.go first, then numbers.go (the number of replicas, and the fallback regions when one has
// no capacity), then offers.go (the offerings of a replica).
package cloud
