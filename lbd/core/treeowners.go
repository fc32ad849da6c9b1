package core

import "time"

// The prefix trees are bounded, and tenants share them. Each tenant has a share that the prompts of
// others cannot evict (prefix.Tree.InsertFor). Requests without a tenant have the number 0. Tenants receive numbers in the order in which they appear.

const (
	// maxOwners bounds the tenants with a share of their own. Further tenants have one common
	// share.
	maxOwners = 1024
	// sharedOwner is the number of that common share.
	sharedOwner = 1
)

// owner is a tenant with a share of the trees.
type owner struct {
	tenant     string
	number     int
	usedAt     time.Duration // time of the last insert for it, or of its release
	prev, next *owner        // by usedAt, the oldest first
}

// owners assigns the numbers.
type owners struct {
	byTenant    map[string]*owner // never ranged over
	free        []int
	next        int
	first, last *owner
}

func newOwners() owners { return owners{byTenant: map[string]*owner{}, next: sharedOwner + 1} }

// numberFor returns the number of a tenant for which a prompt is inserted.
func (o *owners) numberFor(now time.Duration, tenant string) int {
	if tenant == "" {
		return 0
	}
	w := o.byTenant[tenant]
	switch {
	case w != nil:
		o.unlink(w)
	case len(o.byTenant) >= maxOwners:
		return sharedOwner
	default:
		w = &owner{tenant: tenant, number: o.allocate()}
		o.byTenant[tenant] = w
	}
	w.usedAt = now
	o.link(w)
	return w.number
}

func (o *owners) allocate() int {
	if n := len(o.free); n > 0 {
		number := o.free[n-1]
		o.free = o.free[:n-1]
		return number
	}
	o.next++
	return o.next - 1
}

// link adds w as the most recently used.
func (o *owners) link(w *owner) {
	w.prev, w.next = o.last, nil
	if o.last != nil {
		o.last.next = w
	} else {
		o.first = w
	}
	o.last = w
}

func (o *owners) unlink(w *owner) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		o.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		o.last = w.prev
	}
}

// releaseOwners removes the share of tenants for which nothing was inserted for maxSharedAge, and
// forgets tenants that have nothing in the trees.
func (c *caches) releaseOwners(now time.Duration) {
	o := &c.owners
	for w := o.first; w != nil && now-w.usedAt >= maxSharedAge; w = o.first {
		o.unlink(w)
		if c.replicas.Weight(w.number)+c.peers.Weight(w.number) == 0 {
			delete(o.byTenant, w.tenant)
			o.free = append(o.free, w.number)
			continue
		}
		c.replicas.Release(w.number)
		c.peers.Release(w.number)
		w.usedAt = now
		o.link(w)
	}
}
