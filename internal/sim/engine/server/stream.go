package server

import (
	"sync"

	"skyserve/internal/sim/engine"
)

// stream carries the answer of one request from the driver to its handler. The
// driver never waits: what the handler has not taken yet collects here, at most
// as many words as the request may generate.
type stream struct {
	id    uint64   // set by the driver, used by the driver only
	texts []string // of a given answer

	mu    sync.Mutex
	words []string
	last  engine.Event

	ready chan struct{} // holds one when there is something to take
}

func newStream(texts []string) *stream { return &stream{texts: texts, ready: make(chan struct{}, 1)} }

// push adds what an event brings. It never waits.
func (s *stream) push(ev engine.Event) {
	s.mu.Lock()
	if ev.Kind == engine.TokenEmitted {
		if s.texts != nil {
			ev.Text = s.texts[ev.Index]
		}
		s.words = append(s.words, ev.Text)
	}
	s.last = ev
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// batch is what a handler takes from a stream at once.
type batch struct {
	words []string
	last  engine.Event // what brought the last of them
}

// ended says whether the answer is whole with this batch.
func (b *batch) ended() bool { return b.last.Reason != 0 }

// take empties the stream. The words of the last batch are overwritten.
func (s *stream) take(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.words, s.words = s.words, b.words[:0]
	b.last = s.last
}
