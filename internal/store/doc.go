// Package store persists a service's desired state, leases, usage of API keys, traffic history
// by minute, events, and the batches of clients with their files. It uses NATS JetStream: an embedded server in the
// controller's process by default (Serve), or an existing NATS cluster (Connect accepts any NATS URL).
//
// The client: read store.go first (the client and its connection) and errors.go (when the store is unavailable), then
// kv.go (keys with compare-and-swap), lease.go and tokens.go (leader election with a fencing token), points.go
// (history), usage.go, events.go and eventqueue.go (who or what changed the service), bucket.go (batches), object.go,
// objectsweep.go and cloudbucket.go (files of batches).
//
// The embedded server: server.go (it syncs each write to disk before it acknowledges it), health.go (its restart after
// a full disk) and format.go (the format of its directory).
//
// An embedded server is a single store, or a member of a cluster of three or more. Read cluster.go (the options of a
// member and the identity of its disk), members.go (the maintenance of the cluster by its leader), clusterstatus.go (the
// state that a member observes), memberhealth.go (members report why they cannot write), setmembers.go (a change of the
// members), heal.go (streams that lack members), snapshot.go (how a single store becomes a cluster), detach.go and
// moved.go (how a cluster becomes a single store), election.go (how fast members elect leaders) and clusterclient.go
// (how clients use a cluster).
//
// Backups: backup.go (the format, writing and restoring), restorelock.go (one restore at a time), backupfile.go (files
// and buckets of clouds) and backupdir.go (the backup of a store that does not run).
package store
