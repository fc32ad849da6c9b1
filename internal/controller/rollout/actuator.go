package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/local"
)

// Actuator lets the controller of a service of this machine change its replicas,
// as Running.Carry does for people, without waiting. It starts and stops replicas
// and nothing else: what else differs from service.yaml is left to `up`.
type Actuator struct{ svc local.Service }

// NewActuator acts on a service that was brought up on this machine.
func NewActuator(svc local.Service) Actuator { return Actuator{svc} }

// Standing implements controller.Actuator.
func (a Actuator) Standing() (controller.Standing, error) {
	r, err := Open(a.svc)
	if err != nil {
		return controller.Standing{}, err
	}
	p, err := newPlan(r.svc, r.Spec, r.text, r.Wanted, false)
	if err != nil {
		return controller.Standing{}, err
	}
	s := controller.Standing{Spec: r.Spec, Unfinished: len(p.Changes) > 0 && beyondReplicas(p.Changes) == nil}
	for _, c := range p.Layout.Replicas {
		s.Replicas = append(s.Replicas, controller.StandingReplica{
			ID: c.ID, Model: c.Model, Region: c.Region, GPU: c.GPU, URL: c.URL,
			Drained: slices.Contains(p.Layout.Wanted.Drained, c.ID), Donation: p.Layout.Wanted.Donation(c.ID),
		})
	}
	return s, nil
}

// Carry implements controller.Actuator.
func (a Actuator) Carry(ctx context.Context, o controller.Order, may func() error) (launched []string, err error) {
	unlock, err := a.svc.Lock()
	var busy *local.BusyError
	switch {
	case errors.As(err, &busy):
		return nil, fmt.Errorf("%w: %w", controller.ErrBusy, err)
	case err != nil:
		return nil, err
	}
	defer unlock()
	r, err := Open(a.svc)
	if err != nil {
		return nil, err
	}
	to, err := r.ordered(o)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(r.svc, r.Spec, r.text, to, false)
	if err == nil {
		err = beyondReplicas(p.Changes)
	}
	if err == nil {
		err = may()
	}
	if err != nil {
		return nil, err
	}
	p.within = true
	_, err = p.Apply(ctx, nil)
	before := r.Wanted.IDs(r.Spec)
	return slices.DeleteFunc(to.IDs(r.Spec), func(id string) bool { return slices.Contains(before, id) }), err
}

// ordered is what is wanted once an order holds.
func (r *Running) ordered(o controller.Order) (to local.Wanted, err error) {
	to = r.Wanted
	for _, id := range o.Reclaim {
		to = to.Reclaimed(id)
	}
	for _, id := range o.Remove {
		if to, err = to.Without(r.Spec, id); err != nil {
			return r.Wanted, err
		}
	}
	for _, d := range o.Donate {
		if to, err = to.WithDonated(r.Spec, attached(r.Spec), d.ID, d.Donation); err != nil {
			return r.Wanted, err
		}
	}
	for _, l := range o.Launch {
		if to, err = to.WithCount(r.Spec, l.Model, l.Region, r.serving(to, l.Model, l.Region)+l.Count); err != nil {
			return r.Wanted, err
		}
	}
	return to, nil
}

// serving is how many replicas of a model in a local region are not lent.
func (r *Running) serving(w local.Wanted, model string, region service.Region) int {
	return len(w.Serving(w.IDsOf(r.Spec, model, region)))
}

// beyondReplicas says that changes are of more than replicas, which a running
// controller leaves to people; nil where they are not. The controller itself takes
// up which replicas there are while it runs.
func beyondReplicas(changes provision.Changes) error {
	var more []string
	for _, c := range changes {
		replica := c.Kind() == provision.KindReplica && c.Action != provision.ActionReplace
		takesUp := c.Kind() == provision.KindController && c.Action == provision.ActionReload
		if !replica && !takesUp {
			more = append(more, fmt.Sprintf("%s %s (%s)", c.Action, c.ID(), c.Reason))
		}
	}
	if more == nil {
		return nil
	}
	return fmt.Errorf("the service differs from its service.yaml in more than its replicas, so none is changed until `up` mended that: %s", strings.Join(more, ", "))
}
