// Package probe asks every replica, ten times a second, how it is: whether its
// model answers, how many requests are pending and running in it, and how full
// its KV memory is. What it finds goes to the balancer's core as
// core.EventReplicaReport; what it could not find stays unknown there.
//
// A replica is ready when its model answers, not when its port is open: before
// the first ready report, and again after every failure, its /v1/models must
// list the model.
//
// Replicas are probed in groups, each of them at one moment, and each over a
// connection of its own: a probe is one write, one look whether the connection is
// still good and one read, and allocates nothing.
//
// Read prober.go first (the set of replicas), then group.go (when), watch.go (one
// replica's cycle), source.go (how a page comes) and parse.go (engine metrics).
package probe
