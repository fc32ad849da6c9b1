// Package peer exchanges state between the balancers of one service. Ten times a second, each balancer
// requests the free capacity of every peer (a heartbeat, passed to the core as core.EventPeerReport).
// Once a second it requests the state of the peer's region (a snapshot, for display). From peers of
// its own region, and of others with FollowOtherRegions, it also requests updates about the caches of
// their replicas (core.EventPeerCacheUpdates). If a peer of its region fails and this balancer adopts
// its replicas, it can route conversations to the caches that contain them. The package also contains
// the server side, and a transport that emulates the distance to a peer on one machine.
//
// Read client.go first, then handler.go and prefixes.go (the wire format), then delay.go.
package peer
