// Package store persists a service's desired state, leases and per-minute traffic history.
// It uses NATS JetStream, embedded in the controller's process by default (Serve), or an
// operator's own NATS cluster (Connect accepts any NATS URL).
//
// Read store.go first (connecting, and the meaning of unavailable), then kv.go
// (compare-and-swap), lease.go (election with a fencing token), points.go
// (history) and server.go (the embedded server, which syncs every write to disk
// before it acknowledges it).
package store
