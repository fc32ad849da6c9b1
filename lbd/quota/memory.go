package quota

import (
	"errors"
	"sync"
)

// MemoryLedger accounts for the bytes of requests and answers, in total and per tenant. Allocations
// beyond the bounds are rejected, so the configuration limits the balancer's heap regardless of the
// requests.
type MemoryLedger struct {
	max       int64 // in total
	tenantMax int64 // of one tenant

	mu            sync.Mutex
	bytes         int64
	byTenant      map[string]int64 // only tenants that use memory
	refusedTotal  int64            // number of rejections because of max
	refusedTenant int64            // and because of tenantMax
}

// NewMemory returns a MemoryLedger with bounds for the total and for each tenant.
func NewMemory(max, tenantMax int64) *MemoryLedger {
	return &MemoryLedger{max: max, tenantMax: tenantMax, byTenant: map[string]int64{}}
}

// Reasons for rejecting an allocation.
var (
	ErrMemoryFull = errors.New("the balancer's memory limit for requests was reached")
	ErrShareFull  = errors.New("the tenant's memory limit for requests was reached")
)

// Used returns the bytes in use.
func (m *MemoryLedger) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// UsedBy returns the bytes in use by a tenant.
func (m *MemoryLedger) UsedBy(tenant string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byTenant[tenant]
}

// checkFits returns an error if that many more bytes cannot be used now.
func (m *MemoryLedger) checkFits(tenant string, more int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refusal(tenant, more)
}

// refusal is checkFits with the lock held; it counts rejections.
func (m *MemoryLedger) refusal(tenant string, more int64) error {
	switch {
	case more <= 0:
		return nil
	case tenant != "" && m.byTenant[tenant]+more > m.tenantMax:
		m.refusedTenant++
		return ErrShareFull
	case m.bytes+more > m.max:
		m.refusedTotal++
		return ErrMemoryFull
	}
	return nil
}

// adjust changes the bytes in use by a number of bytes, which may be negative.
func (m *MemoryLedger) adjust(tenant string, by int64) error {
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

// Refusals returns the number of rejections because of the total bound, and because of a tenant's
// bound.
func (m *MemoryLedger) Refusals() (full, over int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refusedTotal, m.refusedTenant
}

// Use returns a MemoryUse for a tenant; empty = no tenant.
func (m *MemoryLedger) Use(tenant string) MemoryUse { return MemoryUse{memory: m, tenant: tenant} }

// MemoryUse is the memory of one request or buffer. It belongs to one goroutine at a time.
// The zero value uses nothing and is not accounted for.
type MemoryUse struct {
	memory *MemoryLedger
	tenant string
	used   int64
}

// Set changes the bytes in use. On an error they are unchanged.
func (h *MemoryUse) Set(bytes int64) error {
	if h.memory == nil || bytes == h.used {
		return nil
	}
	if err := h.memory.adjust(h.tenant, bytes-h.used); err != nil {
		return err
	}
	h.used = bytes
	return nil
}

// Bytes returns the bytes in use.
func (h *MemoryUse) Bytes() int64 { return h.used }

// Fits returns an error if a number of further bytes cannot be used now.
func (h *MemoryUse) Fits(more int64) error {
	if h.memory == nil {
		return nil
	}
	return h.memory.checkFits(h.tenant, more)
}

// Release releases all bytes. It may be called again.
func (h *MemoryUse) Release() { _ = h.Set(0) } // a decrease is never rejected
