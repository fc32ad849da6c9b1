// Package cloud says what a service.yaml asks for in the clouds: which machines,
// on which offerings in which order, and the firewalls and identities that they
// stand on. It decides from its arguments alone; the providers make what it wants.
//
// Read layout.go first, then numbers.go (how many replicas, and where instead when
// a region has none left), then offers.go (on what).
package cloud
