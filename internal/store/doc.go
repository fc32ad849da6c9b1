// Package store keeps what a service must not lose: desired state, leases and
// the per-minute history of its traffic. It runs on NATS JetStream, embedded in
// the process of the controller by default (Serve) or in a cluster of the
// operator's own (Connect takes any NATS URL).
//
// Read store.go first (connecting, and what unavailable means), then kv.go
// (compare-and-swap), lease.go (election with a fencing token), points.go
// (history) and server.go (the embedded server, which syncs every write to disk
// before it acknowledges it).
package store
