package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
)

// The controller's intervals and limits.
const (
	// roundInterval is the probe interval: other balancers adopt the replicas of a dead one after
	// deadAfter probes.
	roundInterval = 500 * time.Millisecond
	// probeTimeout limits how much an unresponsive balancer delays a round.
	probeTimeout = 400 * time.Millisecond
	// changeTimeout is the timeout of one attach or detach.
	changeTimeout = 2 * time.Second
	// deadAfter is the number of consecutive failed probes after which a balancer is dead.
	deadAfter = 3
	// leaseTTL is how long the service may be without a controller after a crash; the lease is
	// renewed at a third of it.
	leaseTTL = 3 * time.Second
	// releaseTimeout is the timeout for releasing the lease on shutdown.
	releaseTimeout = time.Second
)

// errLeaseLost is the error that ends a term of leadership.
var errLeaseLost = errors.New("lease lost")

// state is the part of the store that the controller uses.
type state interface {
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	Create(ctx context.Context, key string, value []byte) (revision uint64, err error)
	CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error)
}

// lease is the leader's lease.
type lease interface {
	Token() uint64
	Valid() bool
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

// Controller is one candidate for leadership of a service.
type Controller struct {
	config    service.ControllerConfig
	immutable service.ControllerConfig // the part that cannot change at run time
	state     state
	acquire   func(ctx context.Context) (lease, error)
	balancers []*trackedBalancer
	known     map[string]bool // replicas that the controller assigns or has assigned
	current   Assignment
	log       *slog.Logger
	loop      *controlLoop // nil = no capacity management
	options   options
	store     storeHealth
	revoked   *identity.RevokedFile // nil without an identity
	events    *store.EventQueue     // nil = events are not stored

	// mu guards the fields below. runRound also uses conflicted without mu, at times when no call to a
	// balancer is in progress.
	mu         sync.Mutex
	writes     []time.Duration           // durations of the last lease renewals
	reloaded   *service.ControllerConfig // reloaded; the next round applies it
	view       View
	conflicted bool              // a balancer has a newer epoch than the current assignment
	lastErrors map[string]string // the last error of each balancer and replica
}

// newController returns a controller that connects to balancers with dial.
func newController(config service.ControllerConfig, st state, acquire func(context.Context) (lease, error), dial func(base string) admin, log *slog.Logger) *Controller {
	c := &Controller{config: config, immutable: config.Immutable(), state: st, acquire: acquire, known: map[string]bool{}, lastErrors: map[string]string{}, log: log}
	for _, b := range config.Balancers {
		c.balancers = append(c.balancers, &trackedBalancer{ControlledBalancer: b, admin: dial(b.Admin)})
	}
	for _, r := range config.Replicas {
		c.known[r.ID] = true
	}
	c.updateView()
	return c
}

// assignmentKey returns the store key of the assignment; it contains the service's name, so that several
// services can share a store.
func (c *Controller) assignmentKey() string { return "assignment." + c.config.Service }

// runController acquires the lease, leads while it holds it, and repeats, until ctx ends.
func (c *Controller) runController(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := c.acquire(ctx)
		if err != nil {
			return // acquire returns an error only when ctx has ended
		}
		c.log.Info("lease acquired", "token", l.Token())
		c.recordLeader(l)
		c.setLease(l)
		err = c.runTerm(ctx, l)
		c.setLease(nil)
		c.log.Info("leadership ended", "token", l.Token(), "reason", err)
		c.releaseLease(ctx, l)
	}
}

// runTerm runs rounds, the control loop and the alerts until the lease or ctx ends. The loop and the
// alerts never delay a round, and all of them end with the term.
func (c *Controller) runTerm(ctx context.Context, l lease) error {
	ctx, end := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer end()
	if c.loop != nil {
		background.Go(func() { c.loop.runLoop(ctx, l) })
	}
	background.Go(func() { c.publishAlerts(ctx, l) })
	return c.runRounds(ctx, l)
}

// mayAct returns a function that returns an error once no change is allowed any more: the lease is
// lost, or ctx has ended.
func mayAct(ctx context.Context, l lease) func() error {
	return func() error {
		if !l.Valid() {
			return errLeaseLost
		}
		return ctx.Err()
	}
}

// runRounds runs rounds until the lease or ctx ends.
func (c *Controller) runRounds(ctx context.Context, l lease) error {
	tick := time.NewTicker(roundInterval)
	defer tick.Stop()
	renewed := time.Now()
	loaded := false
	for {
		if time.Since(renewed) >= leaseTTL/3 {
			start := time.Now()
			if err := l.Renew(ctx); err == nil {
				renewed = start // not the end: after a slow renewal the next one is due immediately
				c.recordWrite(time.Since(start))
			}
		}
		if !l.Valid() {
			return errLeaseLost
		}
		if !loaded {
			loaded = c.logFailure(c.loadAssignment(ctx))
		}
		if loaded {
			if err := c.runRound(ctx, l); errors.Is(err, errLeaseLost) {
				return err
			} else if !c.logFailure(err) {
				loaded = false
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// logFailure logs an error once until it changes and reports whether there was none; the next round
// retries.
func (c *Controller) logFailure(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		delete(c.lastErrors, "")
	case !errors.Is(err, context.Canceled) && c.lastErrors[""] != err.Error():
		c.lastErrors[""] = err.Error()
		c.log.Warn("assigning replicas to balancers failed; retrying", "err", err)
	}
	return err == nil
}

// releaseLease releases the lease even when ctx has ended, so that a successor does not have to wait.
func (c *Controller) releaseLease(ctx context.Context, l lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		c.log.Warn("releasing the lease failed; the next leader waits until it expires", "err", err)
	}
}
