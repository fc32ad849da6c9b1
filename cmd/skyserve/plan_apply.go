package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
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
	spec, err := deployedSpec("", found)
	if err != nil {
		return err
	}
	if spec != nil && cloud.Rents(spec) {
		return o.carryOutRented(ctx, p, in, found, spec)
	}
	s, unlock, err := openScaling(ctx, o.target, o.talk, o.clouds)
	if err != nil {
		return err
	}
	defer unlock()
	if now, then := p.CostPerHour.Now, p.CostPerHour.Then; now != nil && then != nil && *then > *now && !o.yes {
		if err := confirm(in, o.talk, fmt.Sprintf("Raise the cost of %s from $%.2f to $%.2f an hour?", s.spec.Name, *now, *then)); err != nil {
			return err
		}
	}
	undone, err := s.follow(ctx, p)
	if err := s.end(ctx, err, undone); err != nil {
		return err
	}
	fmt.Fprintln(o.talk, applied(s.spec.Name, s.changed))
	if !s.changed {
		return nil
	}
	return o.exit(p)
}

// follow carries out what a proposal comes to: the counts of local regions, those that grow first,
// and which machines of static ones are drained. undone says what of it cannot be done.
func (s *scaling) follow(ctx context.Context, p plan.Proposal) (undone []string, err error) {
	to := s.decided
	for _, region := range s.spec.Regions {
		for i := range s.spec.Models {
			if region.Name.Cloud() == service.CloudStatic {
				var cannot error
				if to, cannot = s.followStatic(to, &s.spec.Models[i], region, p); cannot != nil {
					undone = append(undone, cannot.Error())
				}
			}
		}
	}
	if len(sortedIDs(to.Idle())) != len(sortedIDs(s.decided.Idle())) {
		if err := s.decide(ctx, to); err != nil {
			return undone, err
		}
	}
	for _, grow := range []bool{true, false} {
		for _, g := range s.localGroups() {
			now, counts := len(s.serving(s.replicas(g.Model, g.Region))), provision.Counts{}
			for _, c := range rowsOf(p, g) {
				counts[classOf(s.spec, c.Model, c.GPU, "")] += c.Then
			}
			if (counts.Total() > now) != grow {
				continue
			}
			if err := s.reach(ctx, g, counts); err != nil && isDecision(err) {
				undone = append(undone, err.Error())
			} else if err != nil {
				return undone, err
			}
		}
	}
	return undone, nil
}

// localGroups are the models of the local regions.
func (s *scaling) localGroups() []cloud.Group {
	var groups []cloud.Group
	for _, region := range s.spec.Regions {
		for _, m := range s.spec.Models {
			if region.Name.Cloud() == service.CloudLocal {
				groups = append(groups, cloud.Group{Model: m.Name, Region: region.Name})
			}
		}
	}
	return groups
}

// reach makes those of a group serve that counts ask for, which service.yaml must allow; what is
// too many is donated where the service donates.
func (s *scaling) reach(ctx context.Context, g cloud.Group, counts provision.Counts) error {
	if b, n := s.spec.BoundsFor(g.Model, g.Region), counts.Total(); n < b.Min || n > b.Max {
		return &fleet.BoundsError{Model: g.Model, Region: g.Region, Count: n, Bounds: b}
	}
	return s.setCounts(ctx, g, counts)
}

// rowsOf are the changes of one model in one region.
func rowsOf(p plan.Proposal, g cloud.Group) []plan.Change {
	return slices.DeleteFunc(slices.Clone(p.Changes), func(c plan.Change) bool {
		return c.Model != g.Model || c.Region != string(g.Region)
	})
}

// followStatic drains machines that are too many, the last of the list first, and
// uses drained and donated ones again.
func (s *scaling) followStatic(to fleet.Decisions, m *service.Model, region service.RegionSpec, p plan.Proposal) (fleet.Decisions, error) {
	delta := 0
	for _, c := range rowsOf(p, cloud.Group{Model: m.Name, Region: region.Name}) {
		delta += c.Delta
	}
	replicas := static.Replicas(s.spec, region)
	slices.Reverse(replicas)
	for _, c := range replicas {
		idle := to.Idle()[c.ID]
		switch {
		case c.Model != m.Name:
		case delta < 0 && !idle:
			to = to.WithDrained(c.ID, true)
			delta++
		case delta > 0 && idle:
			to = to.WithDrained(c.ID, false).Reclaimed(c.ID)
			delta--
		}
	}
	switch {
	case delta > 0:
		return to, fmt.Errorf("%s in %s: machines cannot be added here: list %d more under endpoints in service.yaml", m.Name, region.Name, delta)
	case delta < 0:
		return to, fmt.Errorf("%s in %s: %d fewer are proposed, and which of its machines serve %s is not known here: drain them by hand", m.Name, region.Name, -delta, m.Name)
	}
	return to, nil
}

// applied says what came of carrying a plan out.
func applied(name string, changed bool) string {
	if changed {
		return name + " runs what the plan proposes"
	}
	return name + ": no change"
}
