package main

import (
	"context"
	"fmt"
	"io"

	"skyserve/internal/service"
)

// decision carries out what somebody decides about the replicas of a running service.
type decision func(ctx context.Context, s *scaling) error

// drained is the decision to let a replica finish what it has and send it nothing
// more; with false, to send it requests again.
func drained(id string, yes bool) decision {
	return func(ctx context.Context, s *scaling) error { return s.Drain(ctx, id, yes) }
}

// donated is the decision to donate a replica from now on.
func donated(id string) decision {
	return func(ctx context.Context, s *scaling) error { return s.Donate(ctx, id) }
}

// reclaimed is the decision to take a replica back that is donated.
func reclaimed(id string) decision {
	return func(ctx context.Context, s *scaling) error { return s.Reclaim(ctx, id) }
}

// decide makes a decision about a service hold. talk is told how that proceeds, changed
// says whether there was anything to do.
func decide(ctx context.Context, name string, in io.Reader, talk io.Writer, yes bool, clouds cloudFlags, d decision) (changed bool, err error) {
	s, unlock, err := openScaling(ctx, name, in, talk, yes, clouds)
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := s.end(ctx, d(ctx, s)); err != nil {
		return s.Changed, err
	}
	strategy := s.spec.Autoscale.Strategy
	switch {
	case !s.Changed:
		fmt.Fprintf(talk, "%s: no change\n", s.spec.Name)
	case strategy != "" && strategy != service.StrategyManual:
		fmt.Fprintf(talk, "autoscale.strategy is %s: it goes on from there\n", strategy)
	}
	return s.Changed, nil
}
