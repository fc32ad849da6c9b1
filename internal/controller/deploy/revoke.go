package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/provision"
)

// revokeTimeout is the timeout for delivering the list to one machine: a revocation takes effect
// within a minute, and a machine that does not respond in that time receives the list later, from the
// controller (see DeliverDue) or with the next `up`.
const revokeTimeout = 20 * time.Second

// Revoke delivers the revocation list to all machines concurrently. It returns the number of
// machines that have it, including those with a newer list; the error contains the reasons of the
// others. Where a delegated CA is on the list and the service's own CA is here, machines that the
// delegated CA certified first get another certificate: otherwise they would reject each other.
func (dl *Delivery) Revoke(ctx context.Context) (delivered int, err error) {
	renewed := dl.eachMachine(ctx, dl.renew)
	errs := dl.eachMachine(ctx, dl.revoke)
	for _, e := range errs {
		if e == nil {
			delivered++
		}
	}
	return delivered, errors.Join(append(renewed, errs...)...)
}

// eachMachine calls do for every machine concurrently, each within revokeTimeout.
func (dl *Delivery) eachMachine(ctx context.Context, do func(context.Context, provision.Object) error) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, revokeTimeout, fmt.Errorf("no response within %s", revokeTimeout))
	defer cancel()
	errs := make([]error, len(dl.Machines))
	var wg sync.WaitGroup
	for i, o := range dl.Machines {
		wg.Go(func() { errs[i] = do(ctx, o) })
	}
	wg.Wait()
	return errs
}

// renew replaces a machine's certificate where its issuer is revoked, or it expires soon. An
// unreachable machine is reported by revoke.
func (dl *Delivery) renew(ctx context.Context, o provision.Object) error {
	if dl.Authority == nil || o.TerminatedReason != "" || !Reachable(o) {
		return nil
	}
	client, m := dl.AgentClient(o), dl.Machine(o)
	s, err := client.Status(ctx, m)
	if err != nil || !client.NeedsRenewal(s) {
		return nil //nolint:nilerr // see above
	}
	return client.Renew(ctx, m)
}

func (dl *Delivery) revoke(ctx context.Context, o provision.Object) error {
	if o.TerminatedReason != "" || !Reachable(o) {
		return fmt.Errorf("delivering the revocation list to %s: the machine is not running or has no address yet", o.ID)
	}
	err := dl.AgentClient(o).Revoke(ctx, dl.Machine(o))
	var refusal *agent.StatusError
	if errors.As(err, &refusal) && refusal.Status == http.StatusConflict {
		s, failed := dl.AgentClient(o).Status(ctx, dl.Machine(o))
		if failed == nil && s.Revoked >= dl.Revoked.Number() {
			return nil
		}
	}
	return err
}
