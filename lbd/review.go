package lbd

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"

	"skyserve/internal/store"
)

// latest contains the last value that the controller stored under a key. The value is kept while the
// controller or the store is unavailable.
type latest[T any] struct {
	value atomic.Pointer[T]
	// changed is called with each new value; may be nil.
	changed func(*T)
}

// newest returns nil before the first value.
func (l *latest[T]) newest() *T { return l.value.Load() }

// watchKey applies every change of a key until the channel is closed. A value that cannot be parsed is
// from another version; the previous value is kept.
func (l *latest[T]) watchKey(key string, changes <-chan store.KeyChange, log *slog.Logger) {
	for c := range changes {
		switch {
		case c.Key != key:
			continue
		case c.Deleted:
			l.value.Store(nil)
			continue
		}
		next := new(T)
		if err := json.Unmarshal(c.Value, next); err != nil {
			log.Warn("reading the controller's state failed", "key", key, "revision", c.Revision, "err", err)
			continue
		}
		l.value.Store(next)
		if l.changed != nil {
			l.changed(next)
		}
	}
}
