package server

import (
	"sync"

	"skyserve/internal/sim/engine"
)

// stream passes the response of one request from the driver to its handler. The driver never waits:
// tokens not yet taken by the handler collect here, at most as many as the request may generate.
type stream struct {
	id    uint64   // set by the driver, used by the driver only
	texts []string // of a given output

	mu    sync.Mutex
	words []string
	last  engine.Event

	ready chan struct{} // has an element when there is something to take
}

func newStream(texts []string) *stream { return &stream{texts: texts, ready: make(chan struct{}, 1)} }

// pushEvent adds an event. It never blocks.
func (s *stream) pushEvent(ev engine.Event) {
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
	last  engine.Event // the event of the last word
}

// ended reports whether the response ends with this batch.
func (b *batch) ended() bool { return b.last.Reason != 0 }

// drain empties the stream. It overwrites the words of the last batch.
func (s *stream) drain(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.words, s.words = s.words, b.words[:0]
	b.last = s.last
}
