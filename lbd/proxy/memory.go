package proxy

import (
	"errors"
	"net/http"
	"sync"
)

// memory accounts for the bytes that requests and answers take, in all and by tenant:
// Limits.Memory says which. What would go beyond is refused, so the balancer's heap is
// bounded by what is configured, whatever clients send.
type memory struct {
	most  int64 // in all
	share int64 // of one tenant

	mu       sync.Mutex
	bytes    int64
	byTenant map[string]int64 // none of tenants that hold nothing
	full     int64            // how often something was refused because of most
	over     int64            // and because of share
}

func newMemory(most, share int64) *memory {
	return &memory{most: most, share: share, byTenant: map[string]int64{}}
}

// Why there is no memory for something.
var (
	errMemoryFull = errors.New("the balancer holds as many bytes of requests as it may")
	errShareFull  = errors.New("the tenant's requests hold as many bytes as they may")
)

// used is how many bytes are taken.
func (m *memory) used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// fits says whether so many bytes more could be taken now; if not, why.
func (m *memory) fits(tenant string, more int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refusal(tenant, more)
}

// refusal is fits with the lock held; it counts what it refuses.
func (m *memory) refusal(tenant string, more int64) error {
	switch {
	case more <= 0:
		return nil
	case tenant != "" && m.byTenant[tenant]+more > m.share:
		m.over++
		return errShareFull
	case m.bytes+more > m.most:
		m.full++
		return errMemoryFull
	}
	return nil
}

// change takes so many bytes more, or gives some back where it is below zero.
func (m *memory) change(tenant string, by int64) error {
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

// held is what one thing takes of the memory. It belongs to one goroutine at a time. The
// zero value takes nothing and is accounted for nowhere.
type held struct {
	memory *memory
	tenant string
	taken  int64
}

// set makes it take so many bytes in place of those that it takes. With an error it takes
// what it took before.
func (h *held) set(bytes int64) error {
	if h.memory == nil || bytes == h.taken {
		return nil
	}
	if err := h.memory.change(h.tenant, bytes-h.taken); err != nil {
		return err
	}
	h.taken = bytes
	return nil
}

// fits says whether it could take so many bytes more now; if not, why.
func (h *held) fits(more int64) error {
	if h.memory == nil {
		return nil
	}
	return h.memory.fits(h.tenant, more)
}

// release gives back all that it takes. It may be called again.
func (h *held) release() { _ = h.set(0) } // less is never refused

// hold begins to account for something of the request.
func (x *exchange) hold() held { return held{memory: x.rt.memory, tenant: x.tenant} }

// errNoMemory answers a request that there is no memory for. What is held moves on as
// answers end.
func errNoMemory(err error) *apiError {
	if errors.Is(err, errShareFull) {
		return &apiError{
			status: http.StatusTooManyRequests, kind: typeRateLimit, code: "tenant_memory", retryAfter: 1,
			message: "too much is under way for this tenant: " + err.Error(),
		}
	}
	return &apiError{
		status: http.StatusServiceUnavailable, kind: typeServer, code: "memory", retryAfter: 2,
		message: "too much is under way: " + err.Error(),
	}
}
