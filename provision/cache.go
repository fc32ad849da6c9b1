package provision

import (
	"context"
	"errors"
	"sync"
	"time"
)

// How long a cloud's answer about prices is cached: price lists change by the month, and a caller that
// was denied may be permitted soon.
const (
	resultTTL = 6 * time.Hour
	errorTTL  = 10 * time.Minute
)

// CloudCache caches answers of a cloud by key: results for 6 hours, errors for 10 minutes. The zero value
// is empty. It is safe for concurrent use: while one caller requests an answer, others wait for it.
// Entries are never evicted, so use few keys.
type CloudCache[T any] struct {
	mu      sync.Mutex
	entries map[string]*cacheEntry[T]
}

// cacheEntry is one cache entry.
type cacheEntry[T any] struct {
	sem     chan struct{} // owned by the caller that requests the answer
	value   T
	err     error
	expires time.Time // zero = not requested yet
}

// Get returns the cached answer, or requests and caches it. An error of a cancelled context is not
// cached.
func (h *CloudCache[T]) Get(ctx context.Context, key string, now time.Time, fetch func(context.Context) (T, error)) (T, error) {
	a := h.entry(key)
	select {
	case a.sem <- struct{}{}:
		defer func() { <-a.sem }()
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
	if now.Before(a.expires) {
		return a.value, a.err
	}
	value, err := fetch(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return value, err
	}
	a.value, a.err, a.expires = value, err, now.Add(resultTTL)
	if err != nil {
		a.expires = now.Add(errorTTL)
	}
	return value, err
}

func (h *CloudCache[T]) entry(key string) *cacheEntry[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.entries == nil {
		h.entries = map[string]*cacheEntry[T]{}
	}
	if h.entries[key] == nil {
		h.entries[key] = &cacheEntry[T]{sem: make(chan struct{}, 1)}
	}
	return h.entries[key]
}
