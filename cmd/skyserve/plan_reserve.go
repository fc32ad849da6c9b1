package main

import (
	"context"
	"errors"
	"io"
	"time"

	"skyserve/plan"
)

// printReservation compares amounts of reserved capacity over the history.
func (o *planOptions) printReservation(ctx context.Context, out io.Writer) error {
	g, err := o.gatherInputs(ctx, time.Now())
	if err != nil {
		return err
	}
	if g.history.Minutes == 0 {
		return usage(errors.New("--compare-reserved: the service has no history"), "pass --history FILE")
	}
	o.fetchPrices(ctx, g.Spec)
	until := time.Time{}
	if o.at != "" {
		until = g.at
	}
	o.review.Interrupt = isInterrupted(ctx)
	r, err := plan.CompareReservations(g.Spec, g.history, time.Time{}, until, o.review)
	switch {
	case ctx.Err() != nil: // prices may be missing, and the search may have ended early
		return ctx.Err()
	case errors.Is(err, plan.ErrNoCounts):
		return failed(err, "list fewer types in models[].gpus: each adds choices to every region")
	case errors.Is(err, plan.ErrInfeasible):
		return failed(err, "")
	case err != nil:
		return usage(err, "")
	}
	return o.writeOutput(out, func(w io.Writer) error {
		if o.format.isDocument() {
			return o.format.writeDocument(w, r)
		}
		return r.WriteTable(w)
	})
}
