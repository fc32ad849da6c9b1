package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/provision"
)

// certifiedTimeout bounds the request for a machine's certificate.
const certifiedTimeout = 5 * time.Second

// admitBalancers rejects machines that claim to be balancers but were not launched from here,
// except those whose ids are about to be replaced. It records known machines that have no
// enrolment because an `up` was interrupted or its record was lost.
func (u *upRun) admitBalancers(ctx context.Context, have []provision.Object, replaced []string) error {
	if u.operator.authority == nil {
		return nil // this machine has no authority, hence no record of enrolments
	}
	var known []provision.Object
	u.strangers, known = u.operator.examine(ctx, u.spec.Name, u.enrolments, have)
	if !u.dryRun {
		if err := errors.Join(u.enrolments.RecordKnown(known), u.enrolments.Store()); err != nil {
			return err
		}
	}
	rejected := slices.DeleteFunc(slices.Clone(u.strangers), func(o provision.Object) bool { return slices.Contains(replaced, o.ID) })
	return strangersError(rejected, u.file)
}

// examine calls ClassifyMachines. Machines that a controller launched are no strangers: balancers report its record, which it
// signed.
func (o operator) examine(ctx context.Context, name string, e *deploy.Enrolments, have []provision.Object) (strangers, known []provision.Object) {
	certified := o.isCertified(ctx, name)
	if strangers, known = e.ClassifyMachines(have, certified); len(strangers) == 0 {
		return strangers, known
	}
	h := deploy.Delivery{Service: name, Party: o.party, Machines: have}
	e.AcceptSigned(h.ReadBalancerLaunches(ctx), o.signers())
	return e.ClassifyMachines(have, certified)
}

// signers returns the party that verifies what controllers of the service signed.
func (o operator) signers() identity.Party {
	p := o.party
	p.Revoked = o.revoked.Has
	return p
}

// strangersWithID returns the unknown machines with an id, as found by the last admitBalancers.
func (u *upRun) strangersWithID(id string) []provision.Object {
	return slices.DeleteFunc(slices.Clone(u.strangers), func(o provision.Object) bool { return o.ID != id })
}

// strangersError returns an error that lists unknown machines; nil if there are none.
func strangersError(strangers []provision.Object, file string) error {
	if len(strangers) == 0 {
		return nil
	}
	err := &deploy.UnknownMachinesError{Machines: strangers}
	return failed(err, err.Hint(file))
}

// isCertified returns a function that reports whether a machine's agent has a valid certificate of
// the service.
func (o operator) isCertified(ctx context.Context, name string) func(provision.Object) bool {
	h := deploy.Delivery{Service: name, Party: o.party}
	return func(machine provision.Object) bool {
		if !deploy.Reachable(machine) {
			return false
		}
		ctx, cancel := context.WithTimeout(ctx, certifiedTimeout)
		defer cancel()
		_, err := h.AgentClient(machine).Status(ctx, h.Machine(machine))
		return err == nil
	}
}

// strangersHint adds the exit code and hint to an error about unknown machines.
func strangersHint(err error, file string) error {
	var strangers *deploy.UnknownMachinesError
	var coded *exitError
	if errors.As(err, &strangers) && !errors.As(err, &coded) {
		return failed(err, strangers.Hint(file))
	}
	return err
}
