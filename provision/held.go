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
	answerHolds  = 6 * time.Hour
	refusalHolds = 10 * time.Minute
)

// Held caches answers of a cloud by key: results for hours, errors for minutes. The zero value is
// empty. It is safe for concurrent use: while one caller requests an answer, others wait for it.
// Entries are never evicted, so use few keys.
type Held[T any] struct {
	mu      sync.Mutex
	answers map[string]*answer[T]
}

// answer is one cache entry.
type answer[T any] struct {
	turn  chan struct{} // owned by the caller that requests the answer
	value T
	err   error
	until time.Time // zero = not requested yet
}

// Ask returns the cached answer, or requests and caches it. An error of a cancelled context is not
// cached.
func (h *Held[T]) Ask(ctx context.Context, key string, now time.Time, ask func(context.Context) (T, error)) (T, error) {
	a := h.answer(key)
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
	if now.Before(a.until) {
		return a.value, a.err
	}
	value, err := ask(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return value, err
	}
	a.value, a.err, a.until = value, err, now.Add(answerHolds)
	if err != nil {
		a.until = now.Add(refusalHolds)
	}
	return value, err
}

func (h *Held[T]) answer(key string) *answer[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answers == nil {
		h.answers = map[string]*answer[T]{}
	}
	if h.answers[key] == nil {
		h.answers[key] = &answer[T]{turn: make(chan struct{}, 1)}
	}
	return h.answers[key]
}
