package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"skyserve/internal/controller/rollout"
	"skyserve/provision/local"
)

// decision is what somebody decides about the replicas of a running service.
type decision func(*rollout.Running) (local.Wanted, error)

// drained is the decision to let a replica finish what it has and send it nothing
// more; with false, to send it requests again.
func drained(id string, yes bool) decision {
	return func(r *rollout.Running) (local.Wanted, error) {
		if err := mustExist(r, id); err != nil {
			return r.Wanted, err
		}
		return r.Wanted.WithDrained(id, yes), nil
	}
}

// donated is the decision to lend a replica from now on.
func donated(id string) decision {
	return func(r *rollout.Running) (local.Wanted, error) { return r.Donate(r.Wanted, id, time.Now()) }
}

// reclaimed is the decision to take a replica back that is lent.
func reclaimed(id string) decision {
	return func(r *rollout.Running) (local.Wanted, error) {
		if err := mustExist(r, id); err != nil {
			return r.Wanted, err
		}
		return r.Wanted.Reclaimed(id), nil
	}
}

// mustExist fails where the service has no replica of that id.
func mustExist(r *rollout.Running, id string) error {
	if slices.Contains(append(r.Attached(), r.Wanted.IDs(r.Spec)...), id) {
		return nil
	}
	return &local.NoReplicaError{ID: id}
}

// decide makes a decision about a service hold. talk is told how that proceeds, changed
// says whether there was anything to do.
func decide(ctx context.Context, name string, talk io.Writer, d decision) (changed bool, err error) {
	svc, running, unlock, err := openRunning(ctx, name)
	if err != nil {
		return false, err
	}
	defer unlock()
	to, err := d(running)
	if err != nil {
		return false, undecided(err)
	}
	s := scaling{svc: svc, talk: talk}
	changed, err = s.carry(ctx, running, to, nil)
	if err == nil && !changed {
		fmt.Fprintf(talk, "%s: no change\n", svc.Name())
	}
	return changed, err
}

// undecided gives advice to a decision that cannot be.
func undecided(err error) error {
	var bounds *local.BoundsError
	switch {
	case errors.As(err, &bounds):
		return usage(err, "change the bounds in service.yaml, then skyserve up")
	case errors.Is(err, local.ErrNotLocal):
		return usage(err, "skyserve replica drain ID lets a machine finish what it has")
	}
	return usage(err, "'skyserve replica list' shows what there is")
}
