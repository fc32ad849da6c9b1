package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"skyserve/plan"
)

// checkApply refuses what --apply cannot go with.
func (o *planOptions) checkApply() error {
	switch {
	case !o.apply:
		return nil
	case o.problem != "":
		return usage(errors.New("--apply: a bare problem is of no service"), "")
	case namesFile(o.target):
		return usage(fmt.Errorf("--apply: want the name of a running service, got %s", o.target), "skyserve up "+o.target+" makes a service what its file says")
	case o.output == "lp" || o.output == "mps":
		return usage(fmt.Errorf("--apply: a plan is needed, and -o %s writes the problem", o.output), "")
	}
	return nil
}

// carryOut makes the running service what a proposal says, and asks first where
// that costs money.
func (o *planOptions) carryOut(ctx context.Context, p plan.Proposal, in io.Reader) error {
	found, err := findService(o.target)
	if err != nil {
		return err
	}
	spec, err := cloudSpec("", found)
	if err != nil {
		return err
	}
	if spec != nil {
		return o.carryOutInClouds(ctx, p, in, found, spec)
	}
	svc, running, unlock, err := openRunning(ctx, o.target)
	if err != nil {
		return err
	}
	defer unlock()
	to, undone := running.Follow(p, time.Now())
	if now, then := p.CostPerHour.Now, p.CostPerHour.Then; now != nil && then != nil && *then > *now && !o.yes {
		if err := confirm(in, o.talk, fmt.Sprintf("Raise the cost of %s from $%.2f to $%.2f an hour?", svc.Name(), *now, *then)); err != nil {
			return err
		}
	}
	s := scaling{svc: svc, talk: o.talk}
	changed, err := s.carry(ctx, running, to, undone)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.talk, applied(svc.Name(), changed))
	if !changed {
		return nil
	}
	return o.exit(p)
}

// applied says what came of carrying a plan out.
func applied(name string, changed bool) string {
	if changed {
		return name + " runs what the plan proposes"
	}
	return name + ": no change"
}
