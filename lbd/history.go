package lbd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Limits of writes to the store, each with its reason.
const (
	pushInterval    = 10 * time.Second // a crash loses at most this much history
	maxPushInterval = time.Minute      // the longest interval while the store is unavailable
	pushTimeout     = 10 * time.Second // longer appends count as an outage
	pushBatch       = 5000             // points per append: a day of one model in three tiers
	finalTimeout    = 3 * time.Second  // for the last push: a shutdown does not wait for the store
)

// PointStore stores the history of all balancers; internal/store implements it.
type PointStore interface {
	// AppendPoints stores points. Of two points with the same minute, balancer, model and tier, the
	// later one replaces the other. After an error, some points may have been stored.
	AppendPoints(ctx context.Context, points []telemetry.Point) error
	// ReadPoints calls yield with every point of a minute or later, and returns the first error of
	// yield.
	ReadPoints(ctx context.Context, sinceMinute int64, yield func(telemetry.Point) error) error
}

// errNoStore means that no store is configured.
var errNoStore = errors.New("no store is configured")

// history sends a balancer's minutes to the store. The backlog is the history in the runtime, so it
// has the same bound.
type history struct {
	balancer  string
	ownPoints func(sinceMinute int64) []telemetry.Point // sorted by minute
	store     PointStore                                // nil = none
	log       *slog.Logger

	pushMu      sync.Mutex // one push at a time; guards the following fields
	startMinute int64      // the minute in which this process started
	lastPushed  []telemetry.Point

	// storedUntil is the minute before which all own points are stored. Only a push changes it.
	storedUntil atomic.Int64

	mu sync.Mutex
	// earlier contains the counts of an earlier process of this balancer for the minute in which this
	// process started; nil until read from the store.
	earlier map[pointKey]telemetry.Point
}

// pointKey identifies a point.
type pointKey struct {
	minute          int64
	balancer, model string
	tier            service.Tier
}

func keyOf(p telemetry.Point) pointKey { return pointKey{p.Minute, p.Balancer, p.Model, p.Tier} }

func newHistory(balancer string, own func(int64) []telemetry.Point, store PointStore, log *slog.Logger) *history {
	return &history{balancer: balancer, ownPoints: own, store: store, log: log, startMinute: time.Now().Unix() / 60}
}

// runHistory pushes until ctx ends, and then once more.
func (h *history) runHistory(ctx context.Context) {
	if h.store == nil {
		return
	}
	wait, unavailable := pushInterval, false
	for {
		select {
		case <-ctx.Done():
			final, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTimeout)
			defer cancel()
			if err := h.pushPoints(final); err != nil {
				h.log.Warn("storing the last minutes of history failed", "err", err)
			}
			return
		case <-time.After(wait):
		}
		err := h.pushPoints(ctx)
		if (err != nil) != unavailable && ctx.Err() == nil {
			unavailable = err != nil
			h.logStoreChange(err)
		}
		if err == nil {
			wait = pushInterval
		} else {
			wait = min(2*wait, maxPushInterval)
		}
	}
}

func (h *history) logStoreChange(err error) {
	if err != nil {
		h.log.Warn("storing history failed, retrying", "err", err)
		return
	}
	h.log.Info("storing history succeeded again")
}

// pushPoints stores every point that changed since the last push.
func (h *history) pushPoints(ctx context.Context) error {
	h.pushMu.Lock()
	defer h.pushMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	if err := h.readEarlier(ctx); err != nil {
		return err
	}
	points := h.localPoints(h.storedUntil.Load())
	if slices.Equal(points, h.lastPushed) {
		return nil
	}
	for chunk := range slices.Chunk(points, pushBatch) {
		if err := h.store.AppendPoints(ctx, chunk); err != nil {
			return err
		}
		// Earlier minutes no longer change; this minute may.
		h.storedUntil.Store(chunk[len(chunk)-1].Minute)
	}
	h.lastPushed = h.pointsSince(points, h.storedUntil.Load())
	return nil
}

// readEarlier reads, once, the counts of an earlier process of this balancer for the minute in which
// this process started. Without them, a push would overwrite them.
func (h *history) readEarlier(ctx context.Context) error {
	h.mu.Lock()
	known := h.earlier != nil
	h.mu.Unlock()
	if known {
		return nil
	}
	before := map[pointKey]telemetry.Point{}
	err := h.store.ReadPoints(ctx, h.startMinute, func(p telemetry.Point) error {
		if p.Balancer == h.balancer && p.Minute == h.startMinute {
			before[keyOf(p)] = p
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.earlier == nil { // otherwise another call was first, and points may have been stored since
		h.earlier = before
	}
	return nil
}

// localPoints returns this balancer's own points from a minute on, including the counts of its
// earlier process, in the order of the runtime.
func (h *history) localPoints(since int64) []telemetry.Point {
	points := h.ownPoints(since)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range points {
		if b, ok := h.earlier[keyOf(points[i])]; ok {
			points[i].Requests += b.Requests
			points[i].PromptTokens += b.PromptTokens
			points[i].CachedTokens += b.CachedTokens
			points[i].OutputTokens += b.OutputTokens
		}
	}
	return points
}

// UnstoredPoints returns this balancer's own points from a minute on that may differ from those in the store.
func (h *history) UnstoredPoints(sinceMinute int64) []telemetry.Point {
	return h.localPoints(max(sinceMinute, h.storedUntil.Load()))
}

// pointsSince returns the points of a minute and later.
func (h *history) pointsSince(points []telemetry.Point, since int64) []telemetry.Point {
	i, _ := slices.BinarySearchFunc(points, since, func(p telemetry.Point, m int64) int { return cmp.Compare(p.Minute, m) })
	return points[i:]
}

// History returns all balancers' points from a minute on, sorted by minute, region, balancer, model
// and tier. This balancer's own points replace older ones from the store; those of other balancers lack what these have
// not stored yet (UnstoredPoints). If the store is unavailable, only its own points are returned, and complete is false.
func (h *history) History(ctx context.Context, sinceMinute int64) (points []telemetry.Point, complete bool, err error) {
	all := map[pointKey]telemetry.Point{}
	err = h.readPoints(ctx, sinceMinute, all)
	for _, p := range h.localPoints(sinceMinute) {
		all[keyOf(p)] = p
	}
	points = make([]telemetry.Point, 0, len(all))
	for _, p := range all {
		points = append(points, p)
	}
	slices.SortFunc(points, func(a, b telemetry.Point) int {
		return cmp.Or(cmp.Compare(a.Minute, b.Minute), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Balancer, b.Balancer),
			cmp.Compare(a.Model, b.Model), cmp.Compare(a.Tier, b.Tier))
	})
	return points, err == nil, nil
}

func (h *history) readPoints(ctx context.Context, since int64, into map[pointKey]telemetry.Point) error {
	if h.store == nil {
		return errNoStore
	}
	if err := h.readEarlier(ctx); err != nil {
		return err
	}
	return h.store.ReadPoints(ctx, since, func(p telemetry.Point) error {
		into[keyOf(p)] = p
		return nil
	})
}
