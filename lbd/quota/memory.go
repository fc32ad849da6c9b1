package quota

import (
	"errors"
	"sync"
)

// Memory accounts for the bytes that requests and answers take, in all and by tenant.
// What would go beyond the bounds is refused, so the balancer's heap is bounded by what is
// configured, whatever clients send.
type Memory struct {
	max       int64 // in all
	tenantMax int64 // of one tenant

	mu       sync.Mutex
	bytes    int64
	byTenant map[string]int64 // none of tenants that hold nothing
	full     int64            // how often something was refused because of max
	over     int64            // and because of tenantMax
}

// NewMemory bounds the bytes in all, and those of one tenant.
func NewMemory(max, tenantMax int64) *Memory {
	return &Memory{max: max, tenantMax: tenantMax, byTenant: map[string]int64{}}
}

// Why there is no memory for something.
var (
	ErrMemoryFull = errors.New("the balancer's memory limit for requests is reached")
	ErrShareFull  = errors.New("the tenant's memory limit for requests is reached")
)

// Used is how many bytes are taken.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// UsedBy is how many of them are a tenant's.
func (m *Memory) UsedBy(tenant string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byTenant[tenant]
}

// fits says whether so many bytes more could be taken now; if not, why.
func (m *Memory) fits(tenant string, more int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refusal(tenant, more)
}

// refusal is fits with the lock held; it counts what it refuses.
func (m *Memory) refusal(tenant string, more int64) error {
	switch {
	case more <= 0:
		return nil
	case tenant != "" && m.byTenant[tenant]+more > m.tenantMax:
		m.over++
		return ErrShareFull
	case m.bytes+more > m.max:
		m.full++
		return ErrMemoryFull
	}
	return nil
}

// change takes so many bytes more, or gives some back where it is below zero.
func (m *Memory) change(tenant string, by int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refusal(tenant, by); err != nil {
		return err
	}
	m.bytes += by
	if tenant == "" {
		return nil
	}
	if m.byTenant[tenant] += by; m.byTenant[tenant] == 0 {
		delete(m.byTenant, tenant)
	}
	return nil
}

// Refusals is how often something was refused because of the bound in all, and because of
// its tenant's.
func (m *Memory) Refusals() (full, over int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.full, m.over
}

// Use begins to account for something of a tenant's; empty = nobody's.
func (m *Memory) Use(tenant string) MemoryUse { return MemoryUse{memory: m, tenant: tenant} }

// MemoryUse is what one thing takes of the memory. It belongs to one goroutine at a time. The
// zero value takes nothing and is accounted for nowhere.
type MemoryUse struct {
	memory *Memory
	tenant string
	taken  int64
}

// Set makes it take so many bytes in place of those that it takes. With an error it takes
// what it took before.
func (h *MemoryUse) Set(bytes int64) error {
	if h.memory == nil || bytes == h.taken {
		return nil
	}
	if err := h.memory.change(h.tenant, bytes-h.taken); err != nil {
		return err
	}
	h.taken = bytes
	return nil
}

// Bytes is how many it takes.
func (h *MemoryUse) Bytes() int64 { return h.taken }

// Fits says whether it could take so many bytes more now; if not, why.
func (h *MemoryUse) Fits(more int64) error {
	if h.memory == nil {
		return nil
	}
	return h.memory.fits(h.tenant, more)
}

// Release gives back all that it takes. It may be called again.
func (h *MemoryUse) Release() { _ = h.Set(0) } // less is never refused
