package proxy

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"time"

	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// lookups are the lookups of stored responses at the peers. Several requests for one response share a
// lookup. Their number is limited, in total and per tenant. A response that no peer holds is not
// looked up again for a while.
type lookups struct {
	mu           sync.Mutex
	maxTotal     int
	maxPerTenant int // limit per tenant
	pending      map[responseID]*pendingLookup
	byTenant     map[string]int // lookups in flight; no entry for tenants without any
	misses       misses
}

// pendingLookup is a lookup in flight. found is set before done is closed.
type pendingLookup struct {
	done    chan struct{}
	found   storedAt
	waiters int
}

func newLookups(l Limits) *lookups {
	return &lookups{
		maxTotal: l.MaxLookups, maxPerTenant: l.MaxTenantLookups, pending: map[responseID]*pendingLookup{}, byTenant: map[string]int{},
		misses: misses{maxEntries: l.MaxMisses, ttl: l.MissTTL},
	}
}

// waiterCount returns the number of requests that wait for a lookup.
func (l *lookups) waiterCount() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.pending {
		n += a.waiters
	}
	return n
}

// join joins the lookup of a response. first: the caller must run it and report the result with
// finish. The error is for the client. If both error and lookup are nil, no peer held the response
// within the last MissTTL.
func (l *lookups) join(response responseID, now time.Duration) (lookup *pendingLookup, first bool, refused *openai.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lookup = l.pending[response]; lookup != nil {
		lookup.waiters++
		return lookup, false, nil
	}
	tenant := response.tenant
	switch {
	case l.misses.has(response, now):
		return nil, false, nil
	case tenant != "" && l.byTenant[tenant] >= l.maxPerTenant:
		return nil, false, errDenied(quota.OverRate("requests", time.Second, "%d lookups of stored responses by this tenant are in flight", l.byTenant[tenant]))
	case len(l.pending) >= l.maxTotal:
		return nil, false, errManyLookups()
	}
	lookup = &pendingLookup{done: make(chan struct{}), waiters: 1}
	l.pending[response] = lookup
	l.byTenant[tenant]++
	return lookup, true, nil
}

// finish reports the result of a lookup to all requests that wait for it.
func (l *lookups) finish(response responseID, lookup *pendingLookup, found storedAt, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, response)
	if l.byTenant[response.tenant]--; l.byTenant[response.tenant] == 0 {
		delete(l.byTenant, response.tenant)
	}
	if found.target == "" {
		l.misses.addMiss(response, now)
	}
	lookup.found = found
	close(lookup.done)
}

// dropMiss deletes the miss of a response, because it exists.
func (l *lookups) dropMiss(response responseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.misses.dropMiss(response)
}

func errManyLookups() *openai.Error {
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "too_many_lookups", RetryAfter: 1,
		Message: "too many lookups of stored responses are in flight: retry later",
	}
}

// locateResponse looks up the holder of a response at the peers. It returns the zero storedAt if no peer
// holds it. A request that joined another one's lookup waits at most until ctx ends.
func (r *Runtime) locateResponse(ctx context.Context, response responseID) (storedAt, *openai.Error) {
	l := r.lookups
	lookup, first, refused := l.join(response, r.Elapsed())
	switch {
	case lookup == nil:
		return storedAt{}, refused
	case !first:
		select {
		case <-lookup.done:
			return lookup.found, nil
		case <-ctx.Done():
			return storedAt{}, nil // no one reads the result
		}
	}
	found := r.askPeers(context.WithoutCancel(ctx), response) // other requests wait for the result too
	if found.target != "" {
		r.storedResponses.putResponse(found)
	}
	l.finish(response, lookup, found, r.Elapsed())
	return found, nil
}

// misses contains the responses that no peer held within the last MissTTL. The zero value with its
// limits set is usable.
type misses struct {
	maxEntries int
	ttl        time.Duration
	order      list.List // of miss, the first to expire first
	byID       map[responseID]*list.Element
}

type miss struct {
	response responseID
	end      time.Duration
}

// has reports whether no peer held a response within the last MissTTL.
func (m *misses) has(response responseID, now time.Duration) bool {
	m.expire(now)
	return m.byID[response] != nil
}

// addMiss remembers a miss. If there are too many, the oldest one is deleted.
func (m *misses) addMiss(response responseID, now time.Duration) {
	m.expire(now)
	m.dropMiss(response)
	if m.byID == nil {
		m.byID = map[responseID]*list.Element{}
	}
	m.byID[response] = m.order.PushBack(miss{response, now + m.ttl})
	if m.order.Len() > m.maxEntries {
		m.dropMiss(m.order.Front().Value.(miss).response)
	}
}

// dropMiss deletes a miss.
func (m *misses) dropMiss(response responseID) {
	if e := m.byID[response]; e != nil {
		m.order.Remove(e)
		delete(m.byID, response)
	}
}

// expire deletes the misses whose ttl has ended.
func (m *misses) expire(now time.Duration) {
	for e := m.order.Front(); e != nil && e.Value.(miss).end <= now; e = m.order.Front() {
		m.dropMiss(e.Value.(miss).response)
	}
}
