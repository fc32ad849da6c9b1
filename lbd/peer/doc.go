// Package peer is how balancers of one service hear of each other: each asks
// every peer ten times a second how much it can take (a heartbeat, which goes
// to the core as core.EventPeerReport) and once a second how its region looks
// (a snapshot, kept for people). Those of its own region it also asks what they
// learned of their replicas' caches (core.EventPeerLearned), so that it finds
// the conversations of the replicas that it adopts when one of them dies. It
// holds the other side of all three as well, and a transport that emulates the
// distance to a peer on one machine.
//
// Read client.go first, then handler.go and prefixes.go (the wire), then delay.go.
package peer
