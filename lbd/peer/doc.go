// Package peer is how balancers of one service hear of each other: each asks
// every peer ten times a second how much it can take (a heartbeat, which goes
// to the core as core.EventPeerReport) and once a second how its region looks
// (a snapshot, kept for people). It also holds the other side of both, and a
// transport that emulates the distance to a peer on one machine.
//
// Read client.go first, then handler.go (the wire), then delay.go.
package peer
