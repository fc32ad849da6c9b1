package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
)

// The controller's rhythm. Adoption takes deadAfter rounds.
const (
	// roundEvery is the probe interval: three of them are adoption's budget.
	roundEvery = 500 * time.Millisecond
	// probeTimeout keeps a balancer that hangs from stretching a round.
	probeTimeout = 400 * time.Millisecond
	// changeTimeout bounds one attach or detach.
	changeTimeout = 2 * time.Second
	// deadAfter is how many failed probes in a row make a balancer dead.
	deadAfter = 3
	// leaseTTL is how long the service may be without a controller after one
	// died without a word; it is renewed at a third of it.
	leaseTTL = 3 * time.Second
	// releaseTimeout bounds giving the lease up at the end.
	releaseTimeout = time.Second
)

// errLeaseLost ends a term of leadership.
var errLeaseLost = errors.New("the lease is lost")

// state is what the controller needs of the store.
type state interface {
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	Create(ctx context.Context, key string, value []byte) (revision uint64, err error)
	CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error)
}

// lease is the right to act.
type lease interface {
	Token() uint64
	Valid() bool
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

// Controller is one candidate for controlling a service.
type Controller struct {
	config     service.ControllerConfig
	fixed      service.ControllerConfig // what of it holds for the life of the process
	state      state
	acquire    func(ctx context.Context) (lease, error)
	balancers  []*watched
	known      map[string]bool // replicas that are or were the controller's to assign
	current    Assignment
	log        *slog.Logger
	reconciler *reconciler // nil = there is nothing to keep, plan and scale
	options    options
	store      storeHealth
	revoked    *identity.RevokedFile // nil where it has no identity

	mu      sync.Mutex                // guards what follows
	writes  []time.Duration           // how long the last writes to the store took
	asked   *service.ControllerConfig // read again; the next round takes it up
	view    View
	refused bool              // a balancer holds something newer than the current assignment
	said    map[string]string // the last error of each balancer and replica
}

// newController makes a controller that reaches balancers through dial.
func newController(config service.ControllerConfig, st state, acquire func(context.Context) (lease, error), dial func(base string) admin, log *slog.Logger) *Controller {
	c := &Controller{config: config, fixed: config.Fixed(), state: st, acquire: acquire, known: map[string]bool{}, said: map[string]string{}, log: log}
	for _, b := range config.Balancers {
		c.balancers = append(c.balancers, &watched{ControlledBalancer: b, admin: dial(b.Admin)})
	}
	for _, r := range config.Replicas {
		c.known[r.ID] = true
	}
	c.show()
	return c
}

// key is where the assignment is kept; it names the service, so that several
// can share a store.
func (c *Controller) key() string { return "assignment." + c.config.Service }

// run waits for the lease, acts while it holds it, and starts over, until ctx ends.
func (c *Controller) run(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := c.acquire(ctx)
		if err != nil {
			return // acquire fails only with ctx
		}
		c.log.Info("lease acquired", "token", l.Token())
		c.hold(l)
		err = c.act(ctx, l)
		c.hold(nil)
		c.log.Info("lease given up", "token", l.Token(), "why", err)
		c.release(ctx, l)
	}
}

// act controls, reconciles and tells alerts until the lease or ctx ends. Nothing of this keeps a
// round waiting, and all of it ends with the term.
func (c *Controller) act(ctx context.Context, l lease) error {
	ctx, end := context.WithCancel(ctx)
	var planning sync.WaitGroup
	defer planning.Wait()
	defer end()
	if c.reconciler != nil {
		planning.Go(func() { c.reconciler.run(ctx, l) })
	}
	planning.Go(func() { c.tellAlerts(ctx, l) })
	return c.lead(ctx, l)
}

// mayAct says why nothing may be changed any more: the lease is lost, or ctx ended.
func mayAct(ctx context.Context, l lease) func() error {
	return func() error {
		if !l.Valid() {
			return errLeaseLost
		}
		return ctx.Err()
	}
}

// lead does round after round until the lease or ctx ends.
func (c *Controller) lead(ctx context.Context, l lease) error {
	tick := time.NewTicker(roundEvery)
	defer tick.Stop()
	renewed := time.Now()
	loaded := false
	for {
		if time.Since(renewed) >= leaseTTL/3 {
			start := time.Now()
			if err := l.Renew(ctx); err == nil {
				renewed = start // from when it holds: on a slow disk the next one is due at once
				c.noteWrite(time.Since(start))
			}
		}
		if !l.Valid() {
			return errLeaseLost
		}
		if !loaded {
			loaded = c.tried(c.load(ctx))
		}
		if loaded {
			if err := c.round(ctx, l); errors.Is(err, errLeaseLost) {
				return err
			} else if !c.tried(err) {
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

// tried logs what failed, once for as long as it fails in the same way; the
// next turn tries again.
func (c *Controller) tried(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		delete(c.said, "")
	case !errors.Is(err, context.Canceled) && c.said[""] != err.Error():
		c.said[""] = err.Error()
		c.log.Warn("trying again", "err", err)
	}
	return err == nil
}

// release gives the lease up even when ctx has ended, so that a successor need not wait.
func (c *Controller) release(ctx context.Context, l lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		c.log.Warn("releasing the lease", "err", err)
	}
}
