package core

import (
	"time"

	"skyserve/lbd/prefix"
)

// CacheChange is a change of the cache of a replica that its engine has reported (lbd/cachemap).
type CacheChange struct {
	// Kind is the change of Key.
	Kind CacheChangeKind `json:"kind"`
	// Key is a prompt, or the beginning of one. It must not be changed.
	Key prefix.Key `json:"key,omitempty"`
	// KeptHashes is the number of leading hashes of Key that the engine still has, for CacheEvicted.
	KeptHashes int `json:"keep,omitempty"`
}

// CacheChangeKind is the kind of a CacheChange.
type CacheChangeKind string

// The kinds.
const (
	CacheStored  CacheChangeKind = "stored"  // the engine has all of Key
	CacheEvicted CacheChangeKind = "evicted" // it has the first KeptHashes hashes of Key, and no continuation of them along Key
	CacheCleared CacheChangeKind = "cleared" // it has nothing; Key is empty
)

// changeCache applies reported changes to the expected cache contents of a replica. A report about text that the
// tree already has does not refresh its recency; a request does.
func (c *caches) changeCache(now time.Duration, ct *cacheTarget, changes []CacheChange) {
	for i := range changes {
		switch change := &changes[i]; change.Kind {
		case CacheStored:
			matches, _, _ := c.match(c.replicas, change.Key, ct.treeSlot)
			if matches[ct.treeSlot] < change.Key.Bytes() {
				c.replicas.InsertFor(c.tenants.numberFor(now, ""), change.Key, ct.treeSlot) // the tenant is unknown
			}
		case CacheEvicted:
			c.replicas.RemoveBelow(change.Key, max(0, change.KeptHashes), ct.treeSlot)
		case CacheCleared:
			c.forgetCache(now, ct)
		}
	}
}
