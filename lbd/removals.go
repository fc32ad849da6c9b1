package lbd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/lbd/admin"
)

// removalStore implements admin.RemovalStore.
type removalStore struct {
	kv interface {
		Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
		Create(ctx context.Context, key string, value []byte) (revision uint64, err error)
		CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error)
	}
	service string
}

// removals returns the store of removals for the admin API; nil without a store.
func (b *balancer) removals() admin.RemovalStore {
	if b.store == nil {
		return nil
	}
	return removalStore{b.store, b.cfg.Service}
}

// AnnounceRemovals implements admin.RemovalStore. It repeats an attempt that another balancer's write made fail, until ctx
// ends.
func (s removalStore) AnnounceRemovals(ctx context.Context, machineHandles []string) error {
	for {
		err := s.tryAnnounce(ctx, machineHandles)
		if !errors.Is(err, store.ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

func (s removalStore) tryAnnounce(ctx context.Context, machineHandles []string) error {
	key := telemetry.RemovalsKey(s.service)
	var r telemetry.Removals
	old, revision, err := s.kv.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		revision = 0
	case err != nil:
		return err
	case json.Unmarshal(old, &r) != nil:
		r = telemetry.Removals{} // damaged: it is replaced
	}
	if r, err = r.With(machineHandles, time.Now()); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the removed replicas: %w", err)
	}
	if revision == 0 {
		_, err = s.kv.Create(ctx, key, text)
	} else {
		_, err = s.kv.CompareAndSwap(ctx, key, text, revision)
	}
	return err
}
