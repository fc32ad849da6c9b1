// Package peer exchanges state between the balancers of one service. Each requests from every peer,
// ten times a second, its free capacity (a heartbeat, passed to the core as core.EventPeerReport)
// and, once a second, the state of its region (a snapshot, for display). From peers of its own
// region it also requests what they learned of their replicas' caches (core.EventPeerCacheUpdates), so
// that it finds the conversations of the replicas that it adopts when one of them dies. The package
// contains the server side too, and a transport that emulates the distance to a peer on one
// machine.
//
// Read client.go first, then handler.go and prefixes.go (the wire format), then delay.go.
package peer
