package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/plan"
)

// checkApply rejects flags that cannot be combined with --apply.
func (o *planOptions) checkApply() error {
	switch {
	case !o.apply:
		return nil
	case o.problem != "":
		return usage(errors.New("--apply: cannot be combined with --problem"), "")
	case namesFile(o.target):
		return usage(fmt.Errorf("--apply: requires the name of a running service, got %s", o.target), "'skyserve up "+o.target+"' deploys the service in the file")
	case o.exportsProblem():
		return usage(fmt.Errorf("--apply: cannot be combined with -o %s, which exports the problem", o.format.kind), "")
	}
	return nil
}

// applyProposal applies a proposal to the running service. It prompts for confirmation if
// that changes the bill.
func (o *planOptions) applyProposal(ctx context.Context, p plan.Proposal, in io.Reader) error {
	s, unlock, err := openScaling(ctx, o.target, in, o.errOut, o.yes, o.clouds)
	if err != nil {
		return err
	}
	defer unlock()
	if err := o.guardPlan(ctx, guard{o.force, s.in, o.errOut}, s.svc, p); err != nil {
		return err
	}
	changes := slices.ContainsFunc(p.Changes, func(c plan.ReplicaChange) bool { return c.Delta != 0 })
	if note := strategyNote(s.spec); changes && note != "" { // a strategy follows the controller's plan, or none
		printMessage(o.errOut, labelWarning, "%s", note)
	}
	if err := s.applyPlan(ctx, p, cmp.Or(o.reason, "skyserve plan --apply")); err != nil {
		return err
	}
	fmt.Fprintln(o.errOut, s.applied())
	if !s.Changed {
		return nil
	}
	return o.exitCode(p)
}

// applyPlan applies a proposal and records it. reason is why the operator applies it.
func (s *scaling) applyPlan(ctx context.Context, p plan.Proposal, reason string) error {
	s.log.reason = reason
	s.notePlan(p)
	err := s.applyCount(ctx, deploy.DesiredBy(s.spec, p))
	s.sendChange(ctx, err)
	return s.result(ctx, err)
}

// applied returns the message after a plan was applied.
func (s *scaling) applied() string {
	if s.Changed {
		return s.spec.Name + ": plan applied"
	}
	return s.spec.Name + ": no change"
}

// drainedNotes returns a note about the drained replicas of a running service that was deployed from this machine: the
// plan adds others for them, and an operator may prefer that they serve again.
func drainedNotes(o *controller.Observed) []string {
	if o.Spec == nil || o.Snapshot == nil {
		return nil
	}
	svc, err := findService(o.Spec.Name)
	if err != nil {
		return nil // it runs elsewhere
	}
	decided, err := deploy.ReadReplicaDecisions(decisionsFile(svc))
	switch {
	case err != nil:
		return []string{"the drained replicas are unknown: " + oneLine(err)}
	case len(decided.Drained) == 0:
		return nil
	}
	return []string{fmt.Sprintf("drained replicas are not counted as running: %s; 'skyserve replica drain %s --undo' lets them serve", strings.Join(decided.Drained, ", "), strings.Join(decided.Drained, " "))}
}
