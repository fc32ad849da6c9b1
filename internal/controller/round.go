package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// admin is what the controller needs of a balancer's admin API.
type admin interface {
	Healthy(ctx context.Context) error
	Workers(ctx context.Context) ([]telemetry.Worker, error)
	AddWorker(ctx context.Context, r service.ReplicaConfig) (added bool, err error)
	RemoveWorker(ctx context.Context, id string, epoch uint64) error
	DrainWorker(ctx context.Context, id, by string) error
}

// watched is a balancer with what the last probes said.
type watched struct {
	service.ControlledBalancer
	admin    admin
	failures int // probes in a row that failed
	// workers are the replicas attached to it as of this round; nil when it did
	// not say.
	workers []telemetry.Worker
	listed  bool
}

func (w *watched) alive() bool { return w.failures < deadAfter }

// round is one turn: probe, decide, publish, mend. Errors are of the store;
// balancers that do not answer are none, they are what the controller is for.
func (c *Controller) round(ctx context.Context, l lease) error {
	c.takeUp()
	c.each(func(w *watched) { c.probe(ctx, w) })
	owners := Assign(c.fleet())
	if owners == nil {
		c.show()
		return nil
	}
	next := c.current.next(owners, l.Token(), c.newestSeen())
	c.refused = false
	if !next.same(c.current) {
		if err := c.publish(ctx, next); err != nil {
			return err
		}
	}
	c.show()
	if !l.Valid() {
		return errLeaseLost
	}
	c.mend(ctx)
	return nil
}

// probe asks a balancer for its health and its replicas.
func (c *Controller) probe(ctx context.Context, w *watched) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	w.listed, w.workers = false, nil
	before := w.alive()
	if err := w.admin.Healthy(ctx); err != nil {
		w.failures++
		if before && !w.alive() {
			c.log.Warn("balancer is dead, its replicas are adopted", "balancer", w.ID, "err", err)
		}
		return
	}
	if !before {
		c.log.Info("balancer lives again, its replicas come back", "balancer", w.ID)
	}
	w.failures = 0
	workers, err := w.admin.Workers(ctx)
	c.changed(w, "", "listing the replicas of a balancer", err)
	if err != nil {
		return
	}
	w.workers, w.listed = workers, true
}

// each runs f for all balancers at once and waits.
func (c *Controller) each(f func(*watched)) {
	var wg sync.WaitGroup
	for _, w := range c.balancers {
		wg.Go(func() { f(w) })
	}
	wg.Wait()
}

// fleet is what Assign needs.
func (c *Controller) fleet() Fleet {
	f := Fleet{Replicas: c.config.Replicas, RTT: c.config.RTT}
	for _, w := range c.balancers {
		f.Balancers = append(f.Balancers, Balancer{ID: w.ID, Region: w.Region, Alive: w.alive()})
	}
	return f
}

// newestSeen is the newest epoch that any balancer holds. One that refused an
// assignment as too old remembers a newer epoch of a replica that it no longer
// has, and does not say which: doubling finds it soon.
func (c *Controller) newestSeen() uint64 {
	var newest uint64
	if c.refused {
		newest = 2*c.current.Epoch() + 1
	}
	for _, w := range c.balancers {
		for _, r := range w.workers {
			newest = max(newest, r.Epoch)
		}
	}
	return newest
}

// publish keeps the next assignment in the store and makes it the current one.
// When somebody else published meanwhile, theirs is read and the next round
// decides again.
func (c *Controller) publish(ctx context.Context, next Assignment) error {
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("publishing the assignment: %w", err)
	}
	var revision uint64
	if c.current.revision == 0 {
		revision, err = c.state.Create(ctx, c.key(), data)
	} else {
		revision, err = c.state.CompareAndSwap(ctx, c.key(), data, c.current.revision)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("publishing the assignment: %w", err), c.load(ctx))
	}
	next.revision = revision
	c.current = next
	c.log.Info("assignment published", "epoch", next.Epoch(), "replicas", len(next.Owners))
	return nil
}

// load reads the published assignment.
func (c *Controller) load(ctx context.Context) error {
	data, revision, err := c.state.Get(ctx, c.key())
	if isGone(err) {
		c.current = Assignment{}
		return nil
	}
	if err != nil {
		return err
	}
	if c.current, err = decodeAssignment(data, revision); err != nil {
		c.log.Warn("the published assignment is damaged and is decided anew", "err", err)
	}
	for id := range c.current.Owners {
		c.known[id] = true
	}
	return nil
}

// mend makes the balancers follow the assignment: what one should not have is
// taken from it before it is given to another, so that a replica has one owner.
func (c *Controller) mend(ctx context.Context) {
	var mu sync.Mutex
	stuck := map[string]bool{} // replicas that could not be taken away
	c.each(func(w *watched) {
		for _, r := range c.surplus(w) {
			id := r.ID
			err := c.letGo(ctx, w, r)
			c.changed(w, id, "detaching a replica", err)
			if err != nil {
				mu.Lock()
				stuck[id] = true
				mu.Unlock()
			}
		}
	})
	c.each(func(w *watched) {
		for _, r := range c.missing(w) {
			if stuck[r.ID] {
				continue
			}
			c.changed(w, r.ID, "attaching a replica", c.attach(ctx, w, r))
		}
	})
}

// changed notes how a change of a balancer's replicas went. What fails in every
// round is logged once.
func (c *Controller) changed(w *watched, replica, doing string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := w.ID + " " + replica
	if err == nil {
		delete(c.said, key)
		return
	}
	c.refused = c.refused || errors.Is(err, telemetry.ErrConflict)
	if c.said[key] != err.Error() {
		c.said[key] = err.Error()
		c.log.Warn(doing, "balancer", w.ID, "replica", replica, "err", err)
	}
}

// surplus lists the replicas of ours that a balancer has and should not have.
// One that an operator attached by hand is not ours.
func (c *Controller) surplus(w *watched) []telemetry.Worker {
	var over []telemetry.Worker
	for _, r := range w.workers {
		if (c.known[r.ID] || r.Epoch > 0) && c.current.Owners[r.ID] != w.ID {
			over = append(over, r)
		}
	}
	slices.SortFunc(over, func(a, b telemetry.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return over
}

// letGo takes a replica from a balancer: at once where another one is to have it,
// and otherwise, since it is wanted no more, when it has finished what it has.
func (c *Controller) letGo(ctx context.Context, w *watched, r telemetry.Worker) error {
	if _, wanted := c.current.Owners[r.ID]; wanted || r.Outstanding == 0 && r.State == service.StateDraining {
		return c.detach(ctx, w, r.ID)
	}
	if r.State == service.StateDraining {
		return nil // the next round looks again
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := w.admin.DrainWorker(ctx, r.ID, telemetry.ByController)
	if errors.Is(err, telemetry.ErrNotFound) { // its model is not known: it has nothing
		return c.detach(ctx, w, r.ID)
	}
	if err == nil {
		c.log.Info("replica drains", "balancer", w.ID, "replica", r.ID)
	}
	return err
}

// missing lists the replicas that a balancer should have and does not, or has
// by an older assignment, at another address or with other ranks. Nothing is known to be missing where it did not say
// what it has.
func (c *Controller) missing(w *watched) []service.ReplicaConfig {
	if !w.listed {
		return nil
	}
	has := map[string]*telemetry.Worker{}
	for i := range w.workers {
		has[w.workers[i].ID] = &w.workers[i]
	}
	var replicas []service.ReplicaConfig
	for _, r := range c.config.Replicas {
		rc := r.For(w.Region)
		rc.Epoch = c.current.Epoch()
		if held := has[r.ID]; c.current.Owners[r.ID] == w.ID &&
			(held == nil || held.Epoch < rc.Epoch || held.URL != rc.URL || held.Ranks() != rc.Ranks() || held.MaxNumSeqs != rc.MaxNumSeqs) {
			replicas = append(replicas, rc)
		}
	}
	return replicas
}

func (c *Controller) detach(ctx context.Context, w *watched, id string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := w.admin.RemoveWorker(ctx, id, c.current.Epoch())
	if errors.Is(err, telemetry.ErrNotFound) {
		return nil
	}
	return err
}

func (c *Controller) attach(ctx context.Context, w *watched, r service.ReplicaConfig) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	added, err := w.admin.AddWorker(ctx, r)
	if added {
		c.log.Info("replica attached", "balancer", w.ID, "replica", r.ID, "epoch", r.Epoch)
	}
	return err
}
