package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"skyserve/internal/controller/fleet"
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
	s, unlock, err := openScaling(ctx, o.target, in, o.talk, o.yes, o.clouds)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.end(ctx, s.follow(ctx, fleet.WantedBy(s.spec, p))); err != nil {
		return err
	}
	fmt.Fprintln(o.talk, applied(s.spec.Name, s.Changed))
	if !s.Changed {
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
