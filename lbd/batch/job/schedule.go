package job

import (
	"cmp"
	"slices"
	"time"
)

// UrgentShare is the share of a batch's window after which its requests precede those of other batches,
// and have the priority of interactive ones: 10 of 24 hours (SageServe section 6.2).
const UrgentShare = 10.0 / 24

// Candidate is a batch with requests to claim.
type Candidate struct {
	ID, Tenant, Key string
	Created         time.Time
	Window          time.Duration
}

// Urgent reports whether the candidate's requests precede others.
func (c *Candidate) Urgent(now time.Time) bool {
	return now.Sub(c.Created) >= time.Duration(UrgentShare*float64(c.Window))
}

// Deadline returns when the batch expires.
func (c *Candidate) Deadline() time.Time { return c.Created.Add(c.Window) }

// Scheduler chooses the batch whose requests are claimed next. Urgent batches are first, the earliest deadline
// first. Otherwise the least served tenant is next; within it the least served key, and of that key the batch with
// the earliest deadline. The zero value is ready.
type Scheduler struct {
	tenants meters
	keys    meters // by tenant and key
}

// meters count served requests by name. A name that returns after a pause starts at the floor: it cannot
// have saved credit.
type meters struct {
	served map[string]float64
}

func (m *meters) of(name string) float64 { return m.served[name] }

// retain forgets the names that are not waiting, and raises new ones to the lowest of the others.
func (m *meters) retain(waiting []string) {
	floor, known := 0.0, false
	for _, n := range waiting {
		if s, ok := m.served[n]; ok && (!known || s < floor) {
			floor, known = s, true
		}
	}
	next := make(map[string]float64, len(waiting))
	for _, n := range waiting {
		s, ok := m.served[n]
		if !ok {
			s = floor
		}
		next[n] = s
	}
	m.served = next
}

func (m *meters) add(name string, n float64) {
	if m.served == nil {
		m.served = map[string]float64{}
	}
	m.served[name] += n
}

func keyOf(c *Candidate) string { return c.Tenant + "\x00" + c.Key }

// Next returns the index of the candidate to serve; -1 if there is none. All candidates must be passed:
// those that are not are no longer waiting.
func (s *Scheduler) Next(candidates []Candidate, now time.Time) int {
	tenants, keys := make([]string, len(candidates)), make([]string, len(candidates))
	for i := range candidates {
		tenants[i], keys[i] = candidates[i].Tenant, keyOf(&candidates[i])
	}
	s.tenants.retain(tenants)
	s.keys.retain(keys)
	best := -1
	for i := range candidates {
		if best < 0 || s.compare(&candidates[i], &candidates[best], now) < 0 {
			best = i
		}
	}
	return best
}

func (s *Scheduler) compare(a, b *Candidate, now time.Time) int {
	urgentA, urgentB := a.Urgent(now), b.Urgent(now)
	order := 0
	switch {
	case urgentA && !urgentB:
		return -1
	case urgentB && !urgentA:
		return 1
	case !urgentA:
		order = cmp.Or(cmp.Compare(s.tenants.of(a.Tenant), s.tenants.of(b.Tenant)), cmp.Compare(a.Tenant, b.Tenant),
			cmp.Compare(s.keys.of(keyOf(a)), s.keys.of(keyOf(b))), cmp.Compare(a.Key, b.Key))
	}
	return cmp.Or(order, a.Deadline().Compare(b.Deadline()), cmp.Compare(a.ID, b.ID))
}

// CountServed counts requests that were claimed.
func (s *Scheduler) CountServed(c Candidate, requests int) {
	s.tenants.add(c.Tenant, float64(requests))
	s.keys.add(keyOf(&c), float64(requests))
}

// GroupPrefixes orders lines so that those with a common beginning are neighbours: they then find each
// other's prefix in the caches of engines.
func GroupPrefixes(lines []Line) {
	slices.SortStableFunc(lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), slices.Compare(a.Body, b.Body), cmp.Compare(a.Number, b.Number))
	})
}
