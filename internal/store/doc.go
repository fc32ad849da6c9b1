// Package store persists a service's desired state, leases, usage of API keys, traffic history
// by minute, and events. It uses NATS JetStream: an embedded server in the controller's process
// by default (Serve), or an existing NATS cluster (Connect accepts any NATS URL).
//
// Read store.go first (the client and its connection) and errors.go (when the store is
// unavailable), then kv.go (keys with compare-and-swap), lease.go and tokens.go (leader election with a
// fencing token), points.go (history), usage.go, events.go and eventqueue.go (who or what changed
// the service), bucket.go and object.go (batches and their files), server.go (the embedded server, which syncs each write to disk before it
// acknowledges it) and health.go (its restart after a full disk).
//
// A store can be a cluster of three: read cluster.go (its options and the identity of a disk), members.go (how it
// opens, grows, shrinks and replaces members), clusterstatus.go, snapshot.go, election.go (how fast it elects
// leaders) and replicas.go (what clients do about it).
package store
