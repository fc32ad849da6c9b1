package provision

import (
	"context"
	"errors"
	"sync"
	"time"
)

// How long the answer to a question about prices holds: those of lists change by the
// month, and who was refused may soon be let in.
const (
	answerHolds  = 6 * time.Hour
	refusalHolds = 10 * time.Minute
)

// Held is answers to questions that a cloud is asked for once and that hold for hours,
// by what they are about; a refusal holds for minutes. The zero value holds none. It is
// safe for concurrent use: while one asks, others wait for the answer. There are to be
// few keys, for none is forgotten.
type Held[T any] struct {
	mu      sync.Mutex
	answers map[string]*answer[T]
}

// answer is one of Held.
type answer[T any] struct {
	turn  chan struct{} // held by who asks
	value T
	err   error
	until time.Time // zero = not asked yet
}

// Ask gives the answer that is held at a time, or asks for it. An error because of a
// context that was cancelled is not held.
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
