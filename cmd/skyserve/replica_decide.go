package main

import (
	"context"
	"fmt"
	"io"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// decision changes the replicas of a running service.
type decision func(ctx context.Context, s *scaling) error

// drainDecision returns the decision to drain a replica, or with false to send it requests again.
func drainDecision(id string, yes bool) decision {
	return func(ctx context.Context, s *scaling) error {
		kind, message, unchanged := telemetry.EventDrain, "drained", "is drained already"
		if !yes {
			kind, message, unchanged = telemetry.EventResume, "undrained", "is not drained"
			if s.Decisions.Donation(id) != nil {
				unchanged += fmt.Sprintf(" but donated: 'skyserve replica reclaim %s' sends it requests again", id)
			}
		}
		return s.recordDecision(kind, id, message, unchanged, func() error {
			err := s.Drain(ctx, id, yes)
			if err == nil && !yes && !s.Changed {
				err = s.undrainAtBalancers(ctx, id)
			}
			return err
		})
	}
}

// undrainAtBalancers undoes the drain of a replica by the admin API of its balancer, which no decision records.
func (s *scaling) undrainAtBalancers(ctx context.Context, id string) error {
	have, err := s.svc.Objects()
	if err == nil && s.servingDelivery(have).Undrain(ctx, id) {
		s.Changed = true
		s.printLine("undrained %s", id)
	}
	return err
}

// donateDecision returns the decision to donate a replica.
func donateDecision(id string) decision {
	return func(ctx context.Context, s *scaling) error {
		s.OnDrained = func(id string) { s.printLine("donated %s", id) }
		return s.recordDecision(telemetry.EventDonate, id, "donated", "is donated already", func() error { return s.Donate(ctx, id) })
	}
}

// reclaimDecision returns the decision to reclaim a donated replica.
func reclaimDecision(id string) decision {
	return func(ctx context.Context, s *scaling) error {
		if s.Decisions.IsDrained(id) && s.Decisions.Donation(id) == nil {
			return usage(fmt.Errorf("%s is drained, not donated", id), fmt.Sprintf("'skyserve replica drain %s --undo' sends it requests again", id))
		}
		return s.recordDecision(telemetry.EventReclaim, id, "reclaimed", "is not donated", func() error { return s.Reclaim(ctx, id) })
	}
}

// applyDecision applies a decision to a service while it holds the service's lock, and
// prints progress to errOut. reason is why the operator makes the change. changed reports whether anything was changed.
func applyDecision(ctx context.Context, name string, in io.Reader, errOut io.Writer, yes bool, reason string, clouds cloudFlags, d decision) (changed bool, err error) {
	s, unlock, err := openScaling(ctx, name, in, errOut, yes, clouds)
	if err != nil {
		return false, err
	}
	defer unlock()
	s.log.reason = reason
	err = d(ctx, s)
	s.sendChange(ctx, err)
	if err := s.result(ctx, err); err != nil {
		return s.Changed, err
	}
	if !s.Changed {
		fmt.Fprintf(errOut, "%s: no change\n", s.spec.Name)
	} else if note := strategyNote(s.spec); note != "" {
		fmt.Fprintln(errOut, note)
	}
	return s.Changed, nil
}

// strategyNote returns a note for an operator who changes the number of replicas of a service that also scales
// itself; empty if it does not.
func strategyNote(spec *service.Spec) string {
	strategy := spec.Autoscale.Strategy
	if strategy == "" || strategy == service.StrategyManual {
		return ""
	}
	return fmt.Sprintf("autoscale.strategy is %s: it may change the number of replicas again; the strategy %s keeps it", strategy, service.StrategyManual)
}
