package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// adminAPI is the part of a balancer's admin API that the controller uses. A worker of that API is a
// replica.
type adminAPI interface {
	Healthy(ctx context.Context) error
	Workers(ctx context.Context) ([]telemetry.Worker, error)
	AddWorker(ctx context.Context, r service.ReplicaConfig) (added bool, err error)
	RemoveWorker(ctx context.Context, id string, epoch uint64) error
	DrainWorker(ctx context.Context, id, by string) error
}

// trackedBalancer is a balancer with the results of the last probes.
type trackedBalancer struct {
	service.ControlledBalancer
	admin    adminAPI
	failures int // consecutive failed probes
	// responded reports whether any probe has succeeded.
	responded bool
	// workers are the replicas that are attached to it, as listed in this round; nil when it did not list them.
	workers []telemetry.Worker
	listed  bool // it listed its replicas in this round
	// probe receives the result of the probe in progress; nil = there is none.
	probe chan probeResult
}

func (b *trackedBalancer) alive() bool { return b.failures < deadAfter }

// runRound probes the balancers, assigns replicas to them, publishes the assignment, and attaches and detaches replicas
// accordingly; the next round retries what failed. It returns errors of the store, and errLeaseLost; balancers that do
// not respond are no error.
func (c *Controller) runRound(ctx context.Context, l lease) error {
	c.applyReload()
	c.forEachBalancer(func(b *trackedBalancer) { c.probeBalancer(ctx, b) })
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
		if err := leadershipCheck(ctx, l)(); err != nil {
			return err
		}
		if err := c.publishAssignment(ctx, next); err != nil {
			return err
		}
	}
	c.updateView()
	if err := leadershipCheck(ctx, l)(); err != nil {
		return err
	}
	c.attachAndDetach(ctx)
	return nil
}

// probeBalancer reads a balancer's health and its replicas. A probe that takes longer than probeWait counts as failed in
// this round and continues into the next: the first one includes a new connection, which takes several round trips. A
// round whose context ends meanwhile does not count.
func (c *Controller) probeBalancer(ctx context.Context, b *trackedBalancer) {
	if b.probe == nil {
		b.probe = make(chan probeResult, 1)
		c.probing.Go(func() { b.probe <- readBalancer(ctx, b.admin) })
	}
	var r probeResult
	timer := time.NewTimer(probeWait)
	defer timer.Stop()
	select {
	case r = <-b.probe:
		b.probe = nil
	case <-timer.C:
		r.err = errSlowProbe
	}
	b.listed, b.workers = false, nil
	if ctx.Err() != nil {
		return // see endProbes
	}
	before := b.alive()
	if r.err != nil {
		b.failures++
		if before && !b.alive() {
			c.recordBalancer(b, telemetry.EventDeath, "balancer "+b.ID+" does not respond", r.err.Error())
			c.log.Warn("balancer does not respond; other balancers adopt its replicas", "balancer", b.ID, "err", r.err)
		}
		return
	}
	if !before {
		c.recordBalancer(b, telemetry.EventRecovery, "balancer "+b.ID+" responds again", "")
		c.log.Info("balancer responds again; its replicas return to it", "balancer", b.ID)
	}
	b.failures, b.responded = 0, true
	c.noteResult(b, "", "listing the replicas of a balancer failed; retrying", r.listing)
	if r.listing == nil {
		b.workers, b.listed = r.workers, true
	}
}

// endProbes waits for the probes in progress, whose context has ended, and discards their results: their errors may be
// those of the context, and the next term must not act on them.
func (c *Controller) endProbes() {
	c.probing.Wait()
	for _, b := range c.balancers {
		b.probe = nil
	}
}

// probeResult is the result of a probe: the error of the health check, or else the replicas, or the error of listing them.
type probeResult struct {
	err, listing error
	workers      []telemetry.Worker
}

// errSlowProbe is the error of a balancer that has not answered yet.
var errSlowProbe = errors.New("no response to a health check")

// readBalancer probes a balancer. Its two requests share one round trip.
func readBalancer(ctx context.Context, admin adminAPI) (r probeResult) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var listing sync.WaitGroup
	listing.Go(func() { r.workers, r.listing = admin.Workers(ctx) })
	if r.err = admin.Healthy(ctx); r.err != nil {
		cancel()
	}
	listing.Wait()
	return r
}

// forEachBalancer calls f for all balancers concurrently and returns when all calls have returned.
func (c *Controller) forEachBalancer(f func(*trackedBalancer)) {
	var wg sync.WaitGroup
	for _, b := range c.balancers {
		wg.Go(func() { f(b) })
	}
	wg.Wait()
}

// assignInput returns the input of Assign.
func (c *Controller) assignInput() AssignInput {
	in := AssignInput{Replicas: c.config.Replicas, RTT: c.config.RTT, Owners: c.current.Owners}
	for _, b := range c.balancers {
		in.Balancers = append(in.Balancers, BalancerHealth{ID: b.ID, Region: b.Region, Alive: b.alive(), New: !b.responded})
	}
	return in
}

// newestEpoch returns the newest epoch of the replicas that balancers have listed. If a balancer has rejected a change
// (c.conflicted), it may remember a newer epoch of a replica that it no longer has and so does not list. The result is then
// more than twice the current epoch, so that after a few rounds the current epoch is newer than the remembered one.
func (c *Controller) newestEpoch() uint64 {
	var newest uint64
	if c.conflicted {
		newest = 2*c.current.Epoch() + 1
	}
	for _, b := range c.balancers {
		for _, r := range b.workers {
			newest = max(newest, r.Epoch)
		}
	}
	return newest
}

// publishAssignment writes the next assignment to the store and makes it the current one. If the write fails, or another
// controller published meanwhile, the stored assignment is loaded and the next round decides again.
func (c *Controller) publishAssignment(ctx context.Context, next Assignment) error {
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("publishing the assignment: %w", err)
	}
	before := c.current
	c.published = next.Token
	var revision uint64
	if before.revision == 0 {
		revision, err = c.kv.Create(ctx, c.assignmentKey(), data)
	} else {
		revision, err = c.kv.CompareAndSwap(ctx, c.assignmentKey(), data, before.revision)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("publishing the assignment: %w", err), c.loadAssignment(ctx))
	}
	next.revision = revision
	c.current = next
	c.recordMoves(before, next)
	c.log.Info("assignment published", "epoch", next.Epoch(), "replicas", len(next.Owners))
	return nil
}

// loadAssignment reads the published assignment. If this controller wrote it but received no response, loadAssignment
// records its moves from the current assignment: a write only succeeds if it replaces the current assignment.
func (c *Controller) loadAssignment(ctx context.Context) error {
	before := c.current
	data, revision, err := c.kv.Get(ctx, c.assignmentKey())
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
	if c.current.revision != before.revision && c.published != 0 && c.current.Token == c.published {
		c.recordMoves(before, c.current)
	}
	for id := range c.current.Owners {
		c.managed[id] = true
	}
	return nil
}

// attachAndDetach attaches and detaches replicas so that balancers match the assignment. A replica is detached
// from one balancer before it is attached to another, so that it has one owner.
func (c *Controller) attachAndDetach(ctx context.Context) {
	var mu sync.Mutex
	stuck := map[string]bool{} // replicas that could not be detached
	c.forEachBalancer(func(b *trackedBalancer) {
		for _, r := range c.replicasToDetach(b) {
			id := r.ID
			err := provision.CheckFence(ctx)
			if err == nil {
				err = c.releaseReplica(ctx, b, r)
			}
			c.noteResult(b, id, "detaching a replica failed; retrying", err)
			if err != nil {
				mu.Lock()
				stuck[id] = true
				mu.Unlock()
			}
		}
	})
	c.forEachBalancer(func(b *trackedBalancer) {
		for _, r := range c.replicasToAttach(b) {
			if stuck[r.ID] || provision.CheckFence(ctx) != nil {
				continue
			}
			c.noteResult(b, r.ID, "attaching a replica failed; retrying", c.attachReplica(ctx, b, r))
		}
	})
}

// noteResult keeps the last error of listing or changing a balancer's replicas, and logs it once until it changes;
// failure is the log message.
func (c *Controller) noteResult(b *trackedBalancer, replica, failure string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := b.ID + " " + replica
	if err == nil {
		delete(c.lastErrors, key)
		return
	}
	c.conflicted = c.conflicted || errors.Is(err, telemetry.ErrConflict)
	if c.lastErrors[key] != err.Error() {
		c.lastErrors[key] = err.Error()
		c.log.Warn(failure, "balancer", b.ID, "replica", replica, "err", err)
	}
}

// replicasToDetach returns the replicas that a balancer has and that are not assigned to it. A replica that no controller
// has attached (epoch 0) stays attached in two cases:
//   - This controller has never assigned it: for example, an operator attached it.
//   - The balancer's configuration has it and this controller's does not, because one of them is older. If this
//     controller's is older, the replica is a new one with the ID of an earlier one. If the balancer's is older, the
//     replica was removed from the service, and the balancer's next configuration removes it.
func (c *Controller) replicasToDetach(b *trackedBalancer) []telemetry.Worker {
	var detach []telemetry.Worker
	for _, r := range b.workers {
		owner, assigned := c.current.Owners[r.ID]
		mayBeNew := !assigned && r.Origin == telemetry.OriginConfig
		leave := r.Epoch == 0 && (!c.managed[r.ID] || mayBeNew)
		if owner != b.ID && !leave {
			detach = append(detach, r)
		}
	}
	slices.SortFunc(detach, func(a, b telemetry.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return detach
}

// releaseReplica detaches a replica from a balancer: immediately where another balancer gets it, otherwise
// after it has drained.
func (c *Controller) releaseReplica(ctx context.Context, b *trackedBalancer, r telemetry.Worker) error {
	if _, wanted := c.current.Owners[r.ID]; wanted || r.Outstanding == 0 && r.State == service.StateDraining {
		return c.detachReplica(ctx, b, r.ID)
	}
	if r.State == service.StateDraining {
		return nil // the next round checks again
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := b.admin.DrainWorker(ctx, r.ID, telemetry.DrainedByController)
	if errors.Is(err, telemetry.ErrNotFound) { // the balancer does not know its model yet, so it has no requests
		return c.detachReplica(ctx, b, r.ID)
	}
	if err == nil {
		c.log.Info("replica drain started", "balancer", b.ID, "replica", r.ID)
	}
	return err
}

// replicasToAttach returns the replicas that a balancer should have but does not have, or has from an older
// assignment, at another address, with another number of data-parallel ranks or with another MaxNumSeqs. It returns none for a balancer that did not
// list its replicas.
func (c *Controller) replicasToAttach(b *trackedBalancer) []service.ReplicaConfig {
	if !b.listed {
		return nil
	}
	has := map[string]*telemetry.Worker{}
	for i := range b.workers {
		has[b.workers[i].ID] = &b.workers[i]
	}
	var replicas []service.ReplicaConfig
	for _, r := range c.config.Replicas {
		rc := r.ForRegion(b.Region)
		rc.Epoch = c.current.Epoch()
		if held := has[r.ID]; c.current.Owners[r.ID] == b.ID &&
			(held == nil || held.Epoch < rc.Epoch || held.URL != rc.URL || held.Ranks() != rc.Ranks() || held.MaxNumSeqs != rc.MaxNumSeqs) {
			replicas = append(replicas, rc)
		}
	}
	return replicas
}

func (c *Controller) detachReplica(ctx context.Context, b *trackedBalancer, id string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := b.admin.RemoveWorker(ctx, id, c.current.Epoch())
	if errors.Is(err, telemetry.ErrNotFound) {
		return nil
	}
	return err
}

func (c *Controller) attachReplica(ctx context.Context, b *trackedBalancer, r service.ReplicaConfig) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	added, err := b.admin.AddWorker(ctx, r)
	if added {
		c.log.Info("replica attached", "balancer", b.ID, "replica", r.ID, "epoch", r.Epoch)
	}
	return err
}
