package core

import "time"

// The prefix trees are bounded, and tenants share them: each has a part that nobody
// else's prompts push out (prefix.Tree.InsertFor). Requests without a tenant are owner
// 0's; tenants get numbers as they come.

const (
	// maxOwners bounds the tenants with a part of their own; those that come when so many
	// have one share one part.
	maxOwners = 1024
	// sharedOwner is the number of those.
	sharedOwner = 1
)

// owner is a tenant with a part of the trees.
type owner struct {
	tenant     string
	number     int
	usedAt       time.Duration // when something was last inserted for it, or it was released
	prev, next *owner        // by used, the longest ago first
}

// owners hands out the numbers.
type owners struct {
	byTenant    map[string]*owner // never ranged over
	free        []int
	next        int
	first, last *owner
}

func newOwners() owners { return owners{byTenant: map[string]*owner{}, next: sharedOwner + 1} }

// numberFor is a tenant's number at a time at which something is inserted for it.
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

// link makes w the one that was used last.
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

// releaseOwners takes the part of tenants away for whom nothing was inserted for
// maxSharedAge, and forgets those of whom the trees hold nothing any more.
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
