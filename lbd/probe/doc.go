// Package probe probes every replica ten times a second. A probe checks whether the model is
// served, and reads the numbers of pending and running requests and the KV utilisation. Results are
// sent to the balancer's core as core.EventReplicaReport; missing figures are unknown.
//
// A replica is ready when its model is served, not when its port is open: before the first ready
// report, and again after every failure, its /v1/models must list the model.
//
// Replicas are probed in groups, each group at one moment, and each replica over its own
// connection: a probe is one write, one check of the connection and one read, and allocates
// nothing.
//
// Read prober.go first (the set of replicas), then group.go (scheduling), watch.go (the cycle of
// one replica), source.go (fetching pages) and parse.go (engine metrics).
package probe
