package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/provision"
)

// The controller's intervals and limits.
const (
	// roundInterval is the probe interval: other balancers adopt the replicas of a dead one after
	// deadAfter probes.
	roundInterval = 500 * time.Millisecond
	// probeWait limits how much an unresponsive balancer delays a round.
	probeWait = 400 * time.Millisecond
	// probeTimeout is the timeout of one probe: as long as deadAfter rounds.
	probeTimeout = deadAfter * roundInterval
	// changeTimeout is the timeout of one attach or detach.
	changeTimeout = 2 * time.Second
	// deadAfter is the number of consecutive failed probes after which a balancer is dead.
	deadAfter = 3
	// leaseTTL is the time after the start of the last renewal at which another controller may acquire the lease.
	leaseTTL = 3 * time.Second
	// renewInterval is the time from the start of a renewal to that of the next one. It is short enough for more than one
	// attempt.
	renewInterval = leaseTTL / 3
	// maxRenewal is how long a renewal that begins on time may take before the lease expires.
	maxRenewal = leaseTTL - renewInterval
	// renewRetry is the interval of renewals after a failure.
	renewRetry = 200 * time.Millisecond
	// leaseMargin is the time between the cancellation of changes and the expiry of the lease. A cancelled
	// call to a cloud or a machine returns within this time. Within a leaseTTL, the clocks of two machines drift
	// apart by less than this time.
	leaseMargin = leaseTTL / 10
	// releaseTimeout is the timeout for releasing the lease on shutdown.
	releaseTimeout = time.Second
)

// errLeaseLost means that the lease is lost or about to expire.
var errLeaseLost = errors.New("lease lost")

// errSuperseded means that a later leader has written to the store.
var errSuperseded = fmt.Errorf("%w: a later leader has written to the store", errLeaseLost)

// kvStore is the part of the store with the keys that the controller reads and writes.
type kvStore interface {
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	Create(ctx context.Context, key string, value []byte) (revision uint64, err error)
	CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error)
}

// lease is the leader's lease.
type lease interface {
	Token() uint64
	Valid() bool
	// Expires is the time at which Valid returns false unless the lease is renewed before.
	Expires() time.Time
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

// Controller is one candidate for leadership of a service.
type Controller struct {
	config           service.ControllerConfig
	immutable        service.ControllerConfig // the part that cannot change at run time
	kv               kvStore
	acquire          func(ctx context.Context) (lease, error)
	balancers        []*trackedBalancer
	probing          sync.WaitGroup // probes in progress
	dial             func(base string) adminAPI
	managed          map[string]bool // replicas that the controller assigns or has assigned
	reassigned       map[string]bool // replicas that a reload assigns to another primary balancer, to which they have not moved yet
	current          Assignment
	published        uint64 // the fencing token of the last attempt to publish an assignment; 0 = none
	log              *slog.Logger
	loop             *controlLoop // nil = no capacity management
	options          options
	health           storeHealth
	applyImmediately func(service.ControllerConfig) error // applies changes that do not wait for a round; nil = none
	revoked          *identity.RevokedFile                // nil without an identity
	events           *store.EventQueue                    // nil = events are not stored

	backupSource backupSource // nil = the store has no backups

	announcing    sync.WaitGroup
	announcements announcements // nil = this controller does not announce itself
	standbys      standbys

	// mu guards the fields below. runRound also uses conflicted without mu, while no goroutine calls
	// noteResult.
	mu          sync.Mutex
	writes      []time.Duration           // durations of the last lease renewals
	reloaded    *service.ControllerConfig // the configuration of the last reload until a round applies it; nil = none
	lastRead    service.ControllerConfig  // the configuration of the last successful reload; at first that of the start
	backupSpec  *service.StoreBackup      // nil = no scheduled backups
	backups     backupState
	controllers int // the number of controllers of the service
	view        View
	termStart   time.Time         // when the current term of leadership began; meaningless while not leading
	conflicted  bool              // a balancer has a newer epoch than the current assignment
	lastErrors  map[string]string // the last error of each balancer and replica
}

// newController returns a controller that connects to balancers with dial.
func newController(config service.ControllerConfig, st kvStore, acquire func(context.Context) (lease, error), dial func(base string) adminAPI, log *slog.Logger) *Controller {
	c := &Controller{config: config, lastRead: config, immutable: config.Immutable(), kv: st, acquire: acquire, managed: map[string]bool{}, reassigned: map[string]bool{}, lastErrors: map[string]string{}, controllers: len(config.Controllers), backupSpec: config.Backup, dial: dial, log: log}
	c.trackBalancers(config.Balancers)
	for _, r := range config.Replicas {
		c.managed[r.ID] = true
	}
	c.updateView()
	return c
}

// assignmentKey returns the store key of the assignment; it contains the service's name, so that several
// services can share a store.
func (c *Controller) assignmentKey() string { return "assignment." + c.immutable.Service }

// runController acquires the lease, leads while it holds it, and repeats, until ctx ends.
func (c *Controller) runController(ctx context.Context) {
	defer c.announcing.Wait()
	for ctx.Err() == nil {
		l, err := c.acquireAsStandby(ctx)
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

// runTerm renews the lease and runs rounds, the control loop, the alerts and the backups until the lease or ctx
// ends. None of them delays another, and all of them end with the term.
func (c *Controller) runTerm(ctx context.Context, l lease) error {
	ctx, end := context.WithCancelCause(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer end(nil)
	background.Go(func() { end(c.renewLease(ctx, l)) })
	if c.loop != nil {
		background.Go(func() { c.loop.runLoop(ctx, l) })
	}
	background.Go(func() { c.publishAlerts(ctx, l) })
	if c.backupSource != nil {
		background.Go(func() { c.runBackups(ctx, l) })
	}
	return c.runRounds(ctx, l)
}

// renewLease renews the lease until ctx ends or another controller may have acquired the lease. A
// renewal that succeeds late keeps the term: nobody acquired the lease meanwhile.
func (c *Controller) renewLease(ctx context.Context, l lease) error {
	wait := renewInterval
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		start := time.Now()
		err := l.Renew(ctx)
		if err == nil {
			c.recordWrite(time.Since(start))
		}
		if !l.Valid() {
			return errLeaseLost
		}
		if wait = renewInterval - time.Since(start); err != nil { // after a slow renewal the next one is due immediately
			wait = min(wait, renewRetry)
		}
	}
}

// leadershipCheck returns a function that returns an error if no change is allowed any more: the lease is lost
// or about to expire, or ctx has ended.
func leadershipCheck(ctx context.Context, l lease) func() error {
	return func() error {
		if !l.Valid() || time.Until(l.Expires()) < leaseMargin {
			return errLeaseLost
		}
		return ctx.Err()
	}
}

// whileHeld returns a fenced context for changes. It ends leaseMargin before the lease expires, unless
// the lease is renewed before: changes in progress end before another controller can acquire the lease.
// It does not begin again after a late renewal.
func whileHeld(ctx context.Context, l lease) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			left := time.Until(l.Expires()) - leaseMargin
			if left <= 0 {
				cancel(errLeaseLost)
				return
			}
			timer := time.NewTimer(left)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
	}()
	return provision.WithFence(ctx, leadershipCheck(ctx, l)), func() { cancel(context.Canceled) }
}

// leaseContexts creates contexts with whileHeld, one after the other. next returns the last one, or a new
// one if the last one has ended and the lease was renewed since.
type leaseContexts struct {
	term context.Context //nolint:containedctx // the parent of all of them
	l    lease
	last context.Context //nolint:containedctx // returned by next until it ends
	end  context.CancelFunc
}

// next returns the context for the next change. It may have ended already.
func (x *leaseContexts) next() context.Context {
	if x.last == nil || x.last.Err() != nil && leadershipCheck(x.term, x.l)() == nil {
		x.stop()
		x.last, x.end = whileHeld(x.term, x.l)
	}
	return x.last
}

// stop ends the last context.
func (x *leaseContexts) stop() {
	if x.end != nil {
		x.end()
	}
}

// runRounds runs rounds until ctx ends, or another controller is found to lead.
func (c *Controller) runRounds(ctx context.Context, l lease) error {
	tick := time.NewTicker(roundInterval)
	defer tick.Stop()
	contexts := leaseContexts{term: ctx, l: l}
	defer c.endProbes()
	defer contexts.stop()
	loaded := false
	var held context.Context
	for {
		if next := contexts.next(); next != held {
			c.endProbes()
			held = next
		}
		if held.Err() == nil && !loaded {
			loaded = c.logFailure(c.loadAssignment(held))
		}
		if held.Err() == nil && loaded {
			err := c.runRound(held, l)
			if errors.Is(err, errSuperseded) {
				return err
			}
			if errors.Is(err, errLeaseLost) { // renewLease decides whether it is lost
				err = nil
			}
			loaded = c.logFailure(err)
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
