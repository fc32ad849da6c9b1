package lbd

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// review is what the controller last made of the service's load. It stays when the
// controller or the store goes.
type review struct {
	held atomic.Pointer[telemetry.Review]
}

// newest is the review, nil before the first.
func (r *review) newest() *telemetry.Review { return r.held.Load() }

// follow takes in every change of the service's review until there are no more. What
// cannot be read is of another version: the one before stays.
func (r *review) follow(service string, changes <-chan store.Change, log *slog.Logger) {
	for c := range changes {
		switch {
		case c.Key != telemetry.ReviewKey(service):
			continue
		case c.Deleted:
			r.held.Store(nil)
			continue
		}
		next := new(telemetry.Review)
		if err := json.Unmarshal(c.Value, next); err != nil {
			log.Warn("reading the controller's review", "revision", c.Revision, "err", err)
			continue
		}
		r.held.Store(next)
	}
}
