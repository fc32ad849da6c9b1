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
// within a minute, and a machine that does not respond in that time receives the list with the next
// `up`.
const revokeTimeout = 20 * time.Second

// Revoke delivers the revocation list to all machines concurrently. It returns the number of
// machines that have it, including those with a newer list; the error contains the reasons of the
// others. Where a delegated CA is on the list and the service's own CA is here, machines that the
// delegated CA certified first get another certificate: otherwise they would reject each other.
func (h *Delivery) Revoke(ctx context.Context) (delivered int, err error) {
	renewed := h.eachMachine(ctx, h.renew)
	errs := h.eachMachine(ctx, h.revoke)
	for _, e := range errs {
		if e == nil {
			delivered++
		}
	}
	return delivered, errors.Join(append(renewed, errs...)...)
}

// eachMachine calls do for every machine concurrently, each within revokeTimeout.
func (h *Delivery) eachMachine(ctx context.Context, do func(context.Context, provision.Object) error) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, revokeTimeout, fmt.Errorf("no response within %s", revokeTimeout))
	defer cancel()
	errs := make([]error, len(h.Have))
	var wg sync.WaitGroup
	for i, o := range h.Have {
		wg.Go(func() { errs[i] = do(ctx, o) })
	}
	wg.Wait()
	return errs
}

// renew replaces a machine's certificate where its issuer is revoked, or it expires soon. An
// unreachable machine is reported by revoke.
func (h *Delivery) renew(ctx context.Context, o provision.Object) error {
	if h.Authority == nil || o.TerminatedReason != "" || !Reachable(o) {
		return nil
	}
	op, m := h.Operator(o), h.Machine(o)
	s, err := op.Status(ctx, m)
	if err != nil || !op.Renews(s) {
		return nil //nolint:nilerr // see above
	}
	return op.Renew(ctx, m)
}

func (h *Delivery) revoke(ctx context.Context, o provision.Object) error {
	if o.TerminatedReason != "" || !Reachable(o) {
		return fmt.Errorf("delivering the revocation list to %s: the machine is not running or has no address yet", o.ID)
	}
	err := h.Operator(o).Revoke(ctx, h.Machine(o))
	var refusal *agent.Refusal
	if errors.As(err, &refusal) && refusal.Status == http.StatusConflict {
		s, failed := h.Operator(o).Status(ctx, h.Machine(o))
		if failed == nil && s.Revoked >= h.Revoked.Number() {
			return nil
		}
	}
	return err
}
