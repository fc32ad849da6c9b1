// Package probe probes every replica ten times a second. A probe checks whether the model is
// served, and reads the numbers of pending and running requests and the KV utilisation. Results are
// sent to the balancer's core as core.EventReplicaReport; missing figures are unknown.
//
// A replica is ready when its model is served, not when its port is open: before the first ready
// report, and again after every failure, its /v1/models must list the model. This list also contains
// the LoRA adapters that the engine serves; it is read again every few seconds.
//
// Replicas are probed in groups, each group at one moment, and each replica over its own
// connection. Over http, a probe usually is one request, and allocates nothing. Probes over TLS, and
// those that also read the model list or a second endpoint, cost more.
//
// An engine is recognised by what it responds: its figures come from the metrics page or the load
// endpoint that it has. docs/metrics.md lists them.
//
// Read prober.go first (the set of replicas), then group.go (scheduling), watch.go (the cycle of
// one replica), models.go (its model list), signals.go (where its figures come from), source.go
// (fetching pages), parse.go with figures.go and labels.go (metrics pages), and loads.go and
// iterations.go with scan.go (JSON).
package probe
