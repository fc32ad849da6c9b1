// Package probe asks every replica, ten times a second, how it is: whether its
// model answers, how many requests are pending and running in it, and how full
// its KV memory is. What it finds goes to the balancer's core as
// core.EventReplicaReport; what it could not find stays unknown there.
//
// A replica is ready when its model answers, not when its port is open: before
// the first ready report, and again after every failure, its /v1/models must
// list the model.
//
// Read prober.go first (the set of replicas), then watch.go (one replica's
// cycle) and parse.go (engine metrics).
package probe
