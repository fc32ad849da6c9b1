package main

import (
	"context"
	"fmt"
	"io"

	"skyserve/internal/service"
)

// decision changes the replicas of a running service.
type decision func(ctx context.Context, s *scaling) error

// drained returns the decision to drain a replica, or with false to send it requests again.
func drained(id string, yes bool) decision {
	return func(ctx context.Context, s *scaling) error { return s.Drain(ctx, id, yes) }
}

// donated returns the decision to donate a replica.
func donated(id string) decision {
	return func(ctx context.Context, s *scaling) error { return s.Donate(ctx, id) }
}

// reclaimed returns the decision to reclaim a donated replica.
func reclaimed(id string) decision {
	return func(ctx context.Context, s *scaling) error { return s.Reclaim(ctx, id) }
}

// decide applies a decision to a service while it holds the service's lock, and prints progress to
// talk. changed reports whether anything was changed.
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
		fmt.Fprintf(talk, "autoscale.strategy is %s: it continues from this number of replicas\n", strategy)
	}
	return s.Changed, nil
}
