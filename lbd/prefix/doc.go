// Package prefix remembers which targets hold which prompt prefixes, without
// keeping any text: an approximate radix tree of what each replica has cached
// (SGLang's cache-aware router, SkyLB section 3.2), and where the answers of a
// conversation ended.
//
// A prompt becomes a Key: one chain hash for every BlockBytes bytes, so that
// equal hashes at a position mean equal text up to there, and a match rounds
// down to a block. One Tree holds the keys of all targets; every node carries
// the set of targets that have it, and a child's set is a subset of its
// parent's.
//
// Read key.go first, then tree.go for what a tree does, descend.go for the walk
// and shape.go for how nodes come, split, join and go. The other files are the
// memory: nodes of one cache line (node.go), the sets of targets and the lists
// that make their removal cheap (targets.go), the hashes of the edges
// (edges.go), the index (index.go), the order of eviction (order.go) and whose parts
// go first when it is full (owners.go). All of
// it lies in few large pieces without pointers, which costs the garbage
// collector nothing however many nodes there are.
//
// The package is pure and not safe for concurrent use: its owner serialises
// access.
package prefix
