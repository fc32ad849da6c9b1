package core

import "time"

// The prefix trees are bounded, and tenants share them. Each tenant has a share that the prompts of
// others cannot evict (prefix.Tree.InsertFor). Requests without a tenant have the number 0. Tenants receive numbers in the order in which they appear.

const (
	// maxTreeTenants bounds the tenants with a share of their own. Further tenants have one common
	// share.
	maxTreeTenants = 1024
	// commonTenant is the number of that common share.
	commonTenant = 1
)

// treeTenant is a tenant with a share of the trees.
type treeTenant struct {
	tenant     string
	number     int
	usedAt     time.Duration // time of the last insert for it, or of its release
	prev, next *treeTenant   // by usedAt, the oldest first
}

// treeTenants assigns the numbers.
type treeTenants struct {
	byTenant    map[string]*treeTenant // never ranged over
	free        []int
	next        int
	first, last *treeTenant
}

func newTreeTenants() treeTenants {
	return treeTenants{byTenant: map[string]*treeTenant{}, next: commonTenant + 1}
}

// numberFor returns the number of a tenant for which a prompt is inserted.
func (o *treeTenants) numberFor(now time.Duration, tenant string) int {
	if tenant == "" {
		return 0
	}
	w := o.byTenant[tenant]
	switch {
	case w != nil:
		o.unlink(w)
	case len(o.byTenant) >= maxTreeTenants:
		return commonTenant
	default:
		w = &treeTenant{tenant: tenant, number: o.allocate()}
		o.byTenant[tenant] = w
	}
	w.usedAt = now
	o.link(w)
	return w.number
}

func (o *treeTenants) allocate() int {
	if n := len(o.free); n > 0 {
		number := o.free[n-1]
		o.free = o.free[:n-1]
		return number
	}
	o.next++
	return o.next - 1
}

// link adds w as the most recently used.
func (o *treeTenants) link(w *treeTenant) {
	w.prev, w.next = o.last, nil
	if o.last != nil {
		o.last.next = w
	} else {
		o.first = w
	}
	o.last = w
}

func (o *treeTenants) unlink(w *treeTenant) {
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

// releaseTreeTenants removes the share of tenants for which nothing was inserted for maxSharedAge, and
// forgets tenants that have nothing in the trees.
func (c *caches) releaseTreeTenants(now time.Duration) {
	o := &c.tenants
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
