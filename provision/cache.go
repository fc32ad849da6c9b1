package provision

import (
	"context"
	"errors"
	"sync"
	"time"
)

// How long responses of a cloud are cached. Price lists change once a month. An error expires earlier,
// because a missing permission may be granted soon.
const (
	resultTTL = 6 * time.Hour
	errorTTL  = 10 * time.Minute
)

// CloudCache caches responses of a cloud by key: results for 6 hours, errors for 10 minutes. The zero
// value is empty. It is safe for concurrent use: while one caller sends the request, other callers wait
// for its response. Entries are never evicted, so use few keys.
type CloudCache[T any] struct {
	mu      sync.Mutex
	entries map[string]*cacheEntry[T]
}

// cacheEntry is one cache entry.
type cacheEntry[T any] struct {
	sem     chan struct{} // a semaphore, held by the caller that sends the request
	value   T
	err     error
	expires time.Time // zero = not requested yet
}

// Get returns the cached response, or calls fetch and caches its response. An error of a cancelled
// context is not cached.
func (h *CloudCache[T]) Get(ctx context.Context, key string, now time.Time, fetch func(context.Context) (T, error)) (T, error) {
	e := h.entry(key)
	select {
	case e.sem <- struct{}{}:
		defer func() { <-e.sem }()
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
	if now.Before(e.expires) {
		return e.value, e.err
	}
	value, err := fetch(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return value, err
	}
	e.value, e.err, e.expires = value, err, now.Add(resultTTL)
	if err != nil {
		e.expires = now.Add(errorTTL)
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
