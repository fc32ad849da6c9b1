package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"skyserve/internal/controller/fleet"
	"skyserve/provision"
)

// certifiedTimeout bounds asking a machine for its certificate.
const certifiedTimeout = 5 * time.Second

// admitBalancers refuses machines that claim to be balancers and that nobody launched here, but
// those with one of the ids that are to be replaced. Those that are known and not noted, since an
// `up` was interrupted or its record was lost, are noted.
func (u *upRun) admitBalancers(ctx context.Context, have []provision.Object, replaced []string) error {
	if u.operator.authority == nil {
		return nil // this machine enrols nobody, and has no record of who is enrolled
	}
	var known []provision.Object
	u.strangers, known = u.enrolments.Examine(have, u.operator.isCertified(ctx, u.spec.Name))
	if !u.dryRun {
		if err := u.enrolments.Adopt(known); err != nil {
			return err
		}
	}
	refused := slices.DeleteFunc(slices.Clone(u.strangers), func(o provision.Object) bool { return slices.Contains(replaced, o.ID) })
	return strangersError(refused, u.file)
}

// strangersCalled are the strangers of an id, as they were found last.
func (u *upRun) strangersCalled(id string) []provision.Object {
	return slices.DeleteFunc(slices.Clone(u.strangers), func(o provision.Object) bool { return o.ID != id })
}

// strangersError is the error of strangers in the service of a file; nil without any.
func strangersError(strangers []provision.Object, file string) error {
	if len(strangers) == 0 {
		return nil
	}
	err := &fleet.StrangersError{Machines: strangers}
	return failed(err, err.Hint(file))
}

// isCertified asks the agent of a machine whether it has a good certificate of a service.
func (o operator) isCertified(ctx context.Context, name string) func(provision.Object) bool {
	h := fleet.Handover{Service: name, Party: o.party}
	return func(machine provision.Object) bool {
		if !fleet.Reachable(machine) {
			return false
		}
		ctx, cancel := context.WithTimeout(ctx, certifiedTimeout)
		defer cancel()
		_, err := h.Operator(machine).Status(ctx, h.Machine(machine))
		return err == nil
	}
}

// strangersHint gives an error about strangers that were found while machines were made its exit
// code, and says what to do about them.
func strangersHint(err error, file string) error {
	var strangers *fleet.StrangersError
	var coded *exitError
	if errors.As(err, &strangers) && !errors.As(err, &coded) {
		return failed(err, strangers.Hint(file))
	}
	return err
}
