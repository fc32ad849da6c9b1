// Package prefix remembers which targets hold which prompt prefixes, without
// keeping any text: an approximate radix tree of what each replica has cached
// (SGLang's cache-aware router, SkyLB section 3.2).
//
// A prompt becomes a Key: one chain hash for every BlockBytes bytes, so that
// equal hashes at a position mean equal text up to there, and a match rounds
// down to a block. One Tree holds the keys of all targets; every node carries
// the set of targets that have it, and a child's set is a subset of its
// parent's, so a walk can stop at the first node that nobody has.
//
// Read key.go first, then tree.go. The package is pure and not safe for
// concurrent use: its owner serialises access.
package prefix
