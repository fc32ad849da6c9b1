// Package prefix tracks which prompt prefixes each target has probably cached, without storing text: an
// approximate radix tree of each replica's cache (SGLang's cache-aware router, SkyLB section 3.2),
// and the points at which the responses of a conversation ended. In this package, a target has a prefix
// or a node if it has probably cached that text.
//
// A prompt is converted to a Key: one chain hash per BlockBytes bytes. Equal hashes at a position
// mean equal text up to that position, and a match is rounded down to a block. One Tree contains
// the keys of all targets. Every node but the root stores the set of targets that have it. The set is
// a subset of its parent's, if the parent is not the root.
//
// Read key.go first, then tree.go and trim.go for the operations, descend.go for the walk and shape.go
// for how nodes are added, split, merged and removed. The other files manage memory: nodes of one cache
// line (node.go), the sets of targets and the lists that make their removal cheap (targets.go), the
// hashes of the edges (edges.go), the index (index.go), the eviction order (order.go) and the
// shares of a full tree for its owners, such as tenants (owners.go). Everything is stored in few large
// allocations without pointers, so that the number of nodes costs the garbage collector nothing.
//
// The package is not safe for concurrent use; the caller must serialise access.
package prefix
