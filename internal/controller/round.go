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
	"skyserve/provision"
)

// admin is the part of a balancer's admin API that the controller uses. The API calls replicas
// workers.
type admin interface {
	Healthy(ctx context.Context) error
	Workers(ctx context.Context) ([]telemetry.Worker, error)
	AddWorker(ctx context.Context, r service.ReplicaConfig) (added bool, err error)
	RemoveWorker(ctx context.Context, id string, epoch uint64) error
	DrainWorker(ctx context.Context, id, by string) error
}

// trackedBalancer is a balancer with the results of the last probes.
type trackedBalancer struct {
	service.ControlledBalancer
	admin    admin
	failures int // consecutive failed probes
	// responded reports whether any probe has succeeded.
	responded bool
	// workers are the replicas attached to it in this round; nil when it did not list them.
	workers []telemetry.Worker
	listed  bool
}

func (w *trackedBalancer) alive() bool { return w.failures < deadAfter }

// runRound probes, assigns, publishes and repairs once. It returns errors of the store, and
// errLeaseLost; balancers that do not respond are no error.
func (c *Controller) runRound(ctx context.Context, l lease) error {
	c.applyReload()
	c.forEachBalancer(func(w *trackedBalancer) { c.probeBalancer(ctx, w) })
	owners := Assign(c.assignInput())
	if owners == nil {
		c.updateView()
		return nil
	}
	next := c.current.next(owners, l.Token(), c.newestEpoch())
	c.conflicted = false
	if c.current.Token > l.Token() {
		return errSuperseded
	}
	if !next.equal(c.current) {
		if err := mayAct(ctx, l)(); err != nil {
			return err
		}
		if err := c.publishAssignment(ctx, next); err != nil {
			return err
		}
	}
	c.updateView()
	if err := mayAct(ctx, l)(); err != nil {
		return err
	}
	c.repair(ctx)
	return nil
}

// probeBalancer reads a balancer's health and its replicas.
func (c *Controller) probeBalancer(ctx context.Context, w *trackedBalancer) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	w.listed, w.workers = false, nil
	before := w.alive()
	if err := w.admin.Healthy(ctx); err != nil {
		w.failures++
		if before && !w.alive() {
			c.recordBalancer(w, telemetry.EventDeath, "balancer "+w.ID+" does not respond", err.Error())
			c.log.Warn("balancer does not respond; other balancers adopt its replicas", "balancer", w.ID, "err", err)
		}
		return
	}
	if !before {
		c.recordBalancer(w, telemetry.EventRecovery, "balancer "+w.ID+" responds again", "")
		c.log.Info("balancer responds again; its replicas return to it", "balancer", w.ID)
	}
	w.failures, w.responded = 0, true
	workers, err := w.admin.Workers(ctx)
	c.recordResult(w, "", "listing the replicas of a balancer failed; retrying", err)
	if err != nil {
		return
	}
	w.workers, w.listed = workers, true
}

// forEachBalancer calls f for all balancers concurrently and returns when all calls have returned.
func (c *Controller) forEachBalancer(f func(*trackedBalancer)) {
	var wg sync.WaitGroup
	for _, w := range c.balancers {
		wg.Go(func() { f(w) })
	}
	wg.Wait()
}

// assignInput returns the input of Assign.
func (c *Controller) assignInput() AssignInput {
	f := AssignInput{Replicas: c.config.Replicas, RTT: c.config.RTT, Owners: c.current.Owners}
	for _, w := range c.balancers {
		f.Balancers = append(f.Balancers, BalancerHealth{ID: w.ID, Region: w.Region, Alive: w.alive(), New: !w.responded})
	}
	return f
}

// newestEpoch returns the newest epoch that a balancer has. A balancer may reject an assignment
// because of the newer epoch of a replica that it no longer has. It does not report that epoch, but
// doubling the current epoch soon exceeds it.
func (c *Controller) newestEpoch() uint64 {
	var newest uint64
	if c.conflicted {
		newest = 2*c.current.Epoch() + 1
	}
	for _, w := range c.balancers {
		for _, r := range w.workers {
			newest = max(newest, r.Epoch)
		}
	}
	return newest
}

// publishAssignment writes the next assignment to the store and makes it the current one. If another
// controller published meanwhile, its assignment is loaded and the next round decides again.
func (c *Controller) publishAssignment(ctx context.Context, next Assignment) error {
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("publishing the assignment: %w", err)
	}
	before := c.current
	var revision uint64
	if before.revision == 0 {
		revision, err = c.state.Create(ctx, c.assignmentKey(), data)
	} else {
		revision, err = c.state.CompareAndSwap(ctx, c.assignmentKey(), data, before.revision)
	}
	if err != nil {
		loading := c.loadAssignment(ctx)
		if loading == nil && c.current.Token == next.Token && c.current.equal(next) { // it was written
			c.recordMoves(before, c.current)
		}
		return errors.Join(fmt.Errorf("publishing the assignment: %w", err), loading)
	}
	next.revision = revision
	c.current = next
	c.recordMoves(before, next)
	c.log.Info("assignment published", "epoch", next.Epoch(), "replicas", len(next.Owners))
	return nil
}

// loadAssignment reads the published assignment.
func (c *Controller) loadAssignment(ctx context.Context) error {
	data, revision, err := c.state.Get(ctx, c.assignmentKey())
	if isNotFound(err) {
		c.current = Assignment{}
		return nil
	}
	if err != nil {
		return err
	}
	if c.current, err = decodeAssignment(data, revision); err != nil {
		c.log.Warn("reading the published assignment failed; computing a new one", "err", err)
	}
	for id := range c.current.Owners {
		c.managed[id] = true
	}
	return nil
}

// repair attaches and detaches replicas so that balancers match the assignment. A replica is detached
// from one balancer before it is attached to another, so that it has one owner.
func (c *Controller) repair(ctx context.Context) {
	var mu sync.Mutex
	stuck := map[string]bool{} // replicas that could not be detached
	c.forEachBalancer(func(w *trackedBalancer) {
		for _, r := range c.excessReplicas(w) {
			id := r.ID
			err := provision.CheckFence(ctx)
			if err == nil {
				err = c.releaseReplica(ctx, w, r)
			}
			c.recordResult(w, id, "detaching a replica failed; retrying", err)
			if err != nil {
				mu.Lock()
				stuck[id] = true
				mu.Unlock()
			}
		}
	})
	c.forEachBalancer(func(w *trackedBalancer) {
		for _, r := range c.missingReplicas(w) {
			if stuck[r.ID] || provision.CheckFence(ctx) != nil {
				continue
			}
			c.recordResult(w, r.ID, "attaching a replica failed; retrying", c.attachReplica(ctx, w, r))
		}
	})
}

// recordResult records the result of listing or changing a balancer's replicas. It logs an error
// once until it changes; failure is the log message.
func (c *Controller) recordResult(w *trackedBalancer, replica, failure string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := w.ID + " " + replica
	if err == nil {
		delete(c.lastErrors, key)
		return
	}
	c.conflicted = c.conflicted || errors.Is(err, telemetry.ErrConflict)
	if c.lastErrors[key] != err.Error() {
		c.lastErrors[key] = err.Error()
		c.log.Warn(failure, "balancer", w.ID, "replica", replica, "err", err)
	}
}

// excessReplicas returns the managed replicas that a balancer has but should not have. Replicas that an
// operator attached manually are not managed.
func (c *Controller) excessReplicas(w *trackedBalancer) []telemetry.Worker {
	var excess []telemetry.Worker
	for _, r := range w.workers {
		if (c.managed[r.ID] || r.Epoch > 0) && c.current.Owners[r.ID] != w.ID {
			excess = append(excess, r)
		}
	}
	slices.SortFunc(excess, func(a, b telemetry.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return excess
}

// releaseReplica detaches a replica from a balancer: immediately where another balancer gets it, otherwise
// after it has drained.
func (c *Controller) releaseReplica(ctx context.Context, w *trackedBalancer, r telemetry.Worker) error {
	if _, wanted := c.current.Owners[r.ID]; wanted || r.Outstanding == 0 && r.State == service.StateDraining {
		return c.detachReplica(ctx, w, r.ID)
	}
	if r.State == service.StateDraining {
		return nil // the next round checks again
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := w.admin.DrainWorker(ctx, r.ID, telemetry.DrainedByController)
	if errors.Is(err, telemetry.ErrNotFound) { // its model is unknown, so it has no requests
		return c.detachReplica(ctx, w, r.ID)
	}
	if err == nil {
		c.log.Info("replica drain started", "balancer", w.ID, "replica", r.ID)
	}
	return err
}

// missingReplicas returns the replicas that a balancer should have but does not have, or has from an older
// assignment, at another address, with other ranks or with another MaxNumSeqs. It returns none for a balancer that did not
// list its replicas.
func (c *Controller) missingReplicas(w *trackedBalancer) []service.ReplicaConfig {
	if !w.listed {
		return nil
	}
	has := map[string]*telemetry.Worker{}
	for i := range w.workers {
		has[w.workers[i].ID] = &w.workers[i]
	}
	var replicas []service.ReplicaConfig
	for _, r := range c.config.Replicas {
		rc := r.ForRegion(w.Region)
		rc.Epoch = c.current.Epoch()
		if held := has[r.ID]; c.current.Owners[r.ID] == w.ID &&
			(held == nil || held.Epoch < rc.Epoch || held.URL != rc.URL || held.Ranks() != rc.Ranks() || held.MaxNumSeqs != rc.MaxNumSeqs) {
			replicas = append(replicas, rc)
		}
	}
	return replicas
}

func (c *Controller) detachReplica(ctx context.Context, w *trackedBalancer, id string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := w.admin.RemoveWorker(ctx, id, c.current.Epoch())
	if errors.Is(err, telemetry.ErrNotFound) {
		return nil
	}
	return err
}

func (c *Controller) attachReplica(ctx context.Context, w *trackedBalancer, r service.ReplicaConfig) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	added, err := w.admin.AddWorker(ctx, r)
	if added {
		c.log.Info("replica attached", "balancer", w.ID, "replica", r.ID, "epoch", r.Epoch)
	}
	return err
}
