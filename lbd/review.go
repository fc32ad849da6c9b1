package lbd

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"

	"skyserve/internal/store"
)

// latest is what the controller last kept under a key of the store. It stays when
// the controller or the store goes.
type latest[T any] struct {
	held atomic.Pointer[T]
}

// newest is nil before the first.
func (l *latest[T]) newest() *T { return l.held.Load() }

// follow takes in every change of a key until there are no more. What cannot be
// read is of another version: the one before stays.
func (l *latest[T]) follow(key string, changes <-chan store.Change, log *slog.Logger) {
	for c := range changes {
		switch {
		case c.Key != key:
			continue
		case c.Deleted:
			l.held.Store(nil)
			continue
		}
		next := new(T)
		if err := json.Unmarshal(c.Value, next); err != nil {
			log.Warn("reading what the controller keeps", "key", key, "revision", c.Revision, "err", err)
			continue
		}
		l.held.Store(next)
	}
}
