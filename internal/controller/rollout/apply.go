package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/local"
)

const (
	// settlePatience is how long a replaced object may take until it works
	// again before the change goes no further.
	settlePatience = 60 * time.Second
	// drainPatience is how long a replica that goes may finish what it has.
	drainPatience = 30 * time.Second
	// askTimeout bounds one question to a process of this machine: it answers
	// in milliseconds or does not work.
	askTimeout = time.Second
	// reloadTimeout bounds a reload: reading some files and taking a lock.
	reloadTimeout = 5 * time.Second
	// lookEvery is how often something that is waited for is looked at.
	lookEvery = 100 * time.Millisecond
)

// Apply carries the plan out: it checks that the ports are free, writes the
// state directory, and launches, replaces and stops processes, telling progress.
// The caller holds the lock of the service. Nothing is started when a port is
// taken. When a replacement does not come to work, the rest is left as it was.
func (p *Plan) Apply(ctx context.Context, progress provision.Progress) (provision.Result, error) {
	if err := p.Layout.CheckPorts(p.Changes); err != nil {
		return provision.Result{Skipped: p.Changes}, err
	}
	if err := p.Layout.Save(p.text); err != nil {
		return provision.Result{Skipped: p.Changes}, err
	}
	exe, build, err := p.svc.Install(ctx)
	if err != nil {
		return provision.Result{Skipped: p.Changes}, err
	}
	result, err := provision.Apply(ctx, p.Changes, local.NewProvider(p.svc, exe, build, 0), provision.Options{
		Progress: progress, Settle: p.settle, Drain: p.drain, Reload: p.reload,
	})
	if err != nil {
		return result, err
	}
	return result, p.svc.Home().Tidy(ctx)
}

// reload makes a balancer take up its configuration file, which was written. One
// that does not answer, that is of a version without this, or that would have to
// be started again for a part of it, cannot.
func (p *Plan) reload(ctx context.Context, w provision.Want) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	done, err := p.client(w.Admin).Reload(ctx)
	var status *telemetry.StatusError
	switch {
	case err == nil && done.Revision == w.Spec:
		return nil
	case errors.As(err, &status) && status.Status == http.StatusBadRequest:
		return errors.New(status.Message)
	case p.within:
		return fmt.Errorf("it did not take its configuration up: %w", cmp.Or(err, errOtherRevision))
	}
	return provision.ErrCannotReload
}

// errOtherRevision is why a process that read its configuration again did not take
// it up as it is wanted.
var errOtherRevision = errors.New("a part of it needs another process")

// client speaks to the admin API of a balancer.
func (p *Plan) client(admin string) *telemetry.Client {
	return adminClient(admin, p.Layout.Controller.AdminToken)
}

// settle waits until a replaced object works again.
func (p *Plan) settle(ctx context.Context, o provision.Object) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settlePatience, errors.New("not ready after "+settlePatience.String()))
	defer cancel()
	return p.wait(ctx, map[string]bool{o.ID: true}, nil)
}

// drain takes a replica from its balancers and waits until it has finished what
// it was sent. A balancer that does not answer has nothing to drain.
func (p *Plan) drain(ctx context.Context, o provision.Object) {
	if o.Kind != provision.KindReplica {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	for _, b := range local.Running(p.Have, provision.KindBalancer) {
		c := p.client(b.Admin)
		if !stopSending(ctx, c, o.ID) {
			continue
		}
		for busy(ctx, c, o.ID) && pause(ctx, lookEvery) {
		}
		detach(ctx, c, o.ID)
	}
}

// stopSending lets a replica of a balancer finish what it has and get nothing new;
// false when the balancer does not have it, or does not answer.
func stopSending(ctx context.Context, c *telemetry.Client, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return c.DrainWorker(ctx, id, telemetry.ByUp) == nil
}

// detach takes a replica from a balancer. The controller, which knows that it is
// wanted no more, does the same and may be quicker.
func detach(ctx context.Context, c *telemetry.Client, id string) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_ = c.RemoveWorker(ctx, id, 0) // a balancer that is gone has nothing attached
}

// busy tells whether a balancer still waits for answers of a replica.
func busy(ctx context.Context, c *telemetry.Client, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	snapshot, err := c.Snapshot(ctx)
	if err != nil {
		return false
	}
	for _, region := range snapshot.Regions {
		for _, r := range region.Replicas {
			if r.ID == id && r.Outstanding > 0 {
				return true
			}
		}
	}
	return false
}

// pause waits for d; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
