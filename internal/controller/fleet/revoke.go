package fleet

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

// revokeTimeout bounds handing one machine the list: somebody is to be kept out within a
// minute, and what does not answer by then gets it with the next `up`.
const revokeTimeout = 20 * time.Second

// Revoke hands all machines the list of revoked certificates at once. It counts those
// that have it by now; the error says of each other one why it has not. A machine that has
// a newer list counts. Where a delegated authority is on the list, and the service's own is
// here, machines that the former certified get another certificate before: else they would
// refuse each other.
func (h *Handover) Revoke(ctx context.Context) (told int, err error) {
	renewed := h.each(ctx, h.renew)
	errs := h.each(ctx, h.revoke)
	for _, e := range errs {
		if e == nil {
			told++
		}
	}
	return told, errors.Join(append(renewed, errs...)...)
}

// each does something with every machine at once, each for at most revokeTimeout.
func (h *Handover) each(ctx context.Context, do func(context.Context, provision.Object) error) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, revokeTimeout, fmt.Errorf("no answer within %s", revokeTimeout))
	defer cancel()
	errs := make([]error, len(h.Have))
	var wg sync.WaitGroup
	for i, o := range h.Have {
		wg.Go(func() { errs[i] = do(ctx, o) })
	}
	wg.Wait()
	return errs
}

// renew gives a machine another certificate where who signed its own is revoked, or it ends
// soon. One that cannot be asked is told of by revoke.
func (h *Handover) renew(ctx context.Context, o provision.Object) error {
	if h.Authority == nil || o.Gone != "" || !Reachable(o) {
		return nil
	}
	op, m := h.Operator(o), h.Machine(o)
	s, err := op.Status(ctx, m)
	if err != nil || !op.Renews(s) {
		return nil //nolint:nilerr // see above
	}
	return op.Renew(ctx, m)
}

func (h *Handover) revoke(ctx context.Context, o provision.Object) error {
	if o.Gone != "" || !Reachable(o) {
		return fmt.Errorf("handing over to %s: it does not run, or has no address yet", o.ID)
	}
	err := h.Operator(o).Revoke(ctx, h.Machine(o))
	var refusal *agent.Refusal
	if errors.As(err, &refusal) && refusal.Status == http.StatusConflict {
		s, asking := h.Operator(o).Status(ctx, h.Machine(o))
		if asking == nil && s.Revoked >= h.Revoked.Number() {
			return nil
		}
	}
	return err
}
