package provision

import (
	"net/http"
	"sync"

	"skyserve/provision/record"
)

// MaxCallsPerHost is the maximum number of calls in flight to one endpoint of a cloud. AWS has one
// endpoint per region. More calls would only exceed the rate limit.
const MaxCallsPerHost = 10

// LimitCallsPerHost returns a transport with at most MaxCallsPerHost requests to a host in flight. Other
// requests wait, or fail when their context ends. A request is in flight until its response header
// arrives.
func LimitCallsPerHost(next http.RoundTripper) http.RoundTripper {
	return LimitCallsByKey(next, func(r *http.Request) string { return r.URL.Host })
}

// LimitCallsByKey returns a transport with at most MaxCallsPerHost requests of the same key in flight,
// for a cloud that has one host for all regions. Keys are never evicted, so use few. All calls to the clouds
// pass through this transport, so it also records them if this process records calls (see package provision/record).
func LimitCallsByKey(next http.RoundTripper, key func(*http.Request) string) http.RoundTripper {
	return &callLimit{next: record.Transport(next), key: key, slots: map[string]chan struct{}{}}
}

type callLimit struct {
	next  http.RoundTripper
	key   func(*http.Request) string
	mu    sync.Mutex
	slots map[string]chan struct{}
}

// RoundTrip waits for a free slot and sends a request, unless the fence of its context prevents it.
func (b *callLimit) RoundTrip(r *http.Request) (*http.Response, error) {
	slot := b.slot(b.key(r))
	select {
	case slot <- struct{}{}:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	defer func() { <-slot }()
	if err := CheckFence(r.Context()); err != nil {
		return nil, err
	}
	return b.next.RoundTrip(r)
}

func (b *callLimit) slot(key string) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.slots[key] == nil {
		b.slots[key] = make(chan struct{}, MaxCallsPerHost)
	}
	return b.slots[key]
}
