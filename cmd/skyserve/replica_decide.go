package main

import (
	"context"
	"fmt"
	"io"
)

// decision carries out what somebody decides about the replicas of a running service.
type decision func(ctx context.Context, s *scaling) error

// drained is the decision to let a replica finish what it has and send it nothing
// more; with false, to send it requests again.
func drained(id string, yes bool) decision {
	return func(ctx context.Context, s *scaling) error {
		if _, _, err := s.groupOf(id); err != nil && !s.isAttached(id) {
			return err
		}
		if s.decided.IsDrained(id) == yes {
			return nil
		}
		return s.decide(ctx, s.decided.WithDrained(id, yes))
	}
}

// donated is the decision to donate a replica from now on.
func donated(id string) decision {
	return func(ctx context.Context, s *scaling) error {
		to, err := s.donate(s.decided, id)
		if err != nil || s.decided.Donation(id) != nil {
			return err
		}
		return s.decide(ctx, to)
	}
}

// reclaimed is the decision to take a replica back that is donated.
func reclaimed(id string) decision {
	return func(ctx context.Context, s *scaling) error {
		if _, _, err := s.groupOf(id); err != nil && !s.isAttached(id) {
			return err
		}
		if s.decided.Donation(id) == nil {
			return nil
		}
		return s.decide(ctx, s.decided.Reclaimed(id))
	}
}

// decide makes a decision about a service hold. talk is told how that proceeds, changed
// says whether there was anything to do.
func decide(ctx context.Context, name string, talk io.Writer, d decision) (changed bool, err error) {
	s, unlock, err := openScaling(ctx, name, talk, cloudFlags{})
	if err != nil {
		return false, err
	}
	defer unlock()
	err = d(ctx, s)
	if err == nil && !s.changed {
		fmt.Fprintf(talk, "%s: no change\n", s.spec.Name)
	}
	return s.changed, s.end(ctx, err, nil)
}
