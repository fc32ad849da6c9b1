package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// The maximum number of attempts to copy the store to a machine that has just become ready, and the interval between two.
const (
	copyAttempts = 10
	copyRetry    = time.Second
)

// awaitBalancerInCloud is awaitReplaced for a balancer in a cloud of a service with one controller: it serves beside the
// old machine, which has the same ID, until Apply terminates that one. If the machine has the only store, the store is
// copied. The name of the service then has the new address for as long as resolvers remember the old one.
func (u *upRun) awaitBalancerInCloud(ctx context.Context, o provision.Object) error {
	have, err := u.deployer.AwaitAddress(ctx, o)
	if err != nil {
		return err
	}
	earlier := slices.DeleteFunc(slices.Clone(have), func(other provision.Object) bool {
		return other.ID != o.ID || other.Kind != o.Kind || other.Handle == o.Handle || other.TerminatedReason != ""
	})
	if len(earlier) == 0 {
		return nil // it was terminated first: all machines are awaited together
	}
	if err := u.admitBalancers(ctx, have, nil); err != nil {
		return err
	}
	have = slices.DeleteFunc(have, func(other provision.Object) bool { return slices.ContainsFunc(earlier, sameHandle(other)) })
	h, deployments, err := u.delivery(have)
	if err != nil {
		return err
	}
	h.Awaited, h.UntilDelivered = hasID(o.ID), false
	if err := h.Deliver(ctx, map[string]agent.Deployment{o.ID: deployments[o.ID]}); err != nil {
		return &replacementError{err}
	}
	i := slices.IndexFunc(have, sameHandle(o)) // the launch did not return its addresses
	if u.spec.Store.URL == "" && slices.Contains(deploy.ControlMachines(u.spec, have, u.controllers), o.ID) {
		if err := u.copyStore(ctx, earlier[0], have[i]); err != nil {
			return &replacementError{fmt.Errorf("%w; 'skyserve up %s --replace %s' replaces the machine without its history", err, u.file, o.ID)}
		}
	}
	if u.zone != nil && u.spec.DNS != nil {
		if err := (&publisher{up: u, have: have}).publish(ctx, nil); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(u.spec.DNS.TTL):
		}
	}
	return nil
}

// sameHandle selects the machine of an object: another one may have the same ID.
func sameHandle(o provision.Object) func(provision.Object) bool {
	return func(other provision.Object) bool {
		return other.Handle == o.Handle && other.ID == o.ID && other.Kind == o.Kind
	}
}

// copyStore copies the store of a service with one controller from a machine to the one that takes its place. The new store
// contains nothing yet that the old one lacks, except what its machine wrote since it started.
func (u *upRun) copyStore(ctx context.Context, from, to provision.Object) error {
	hc := telemetry.SecureClient(u.operator.party.Client(identity.Balancer))
	defer hc.CloseIdleConnections()
	at := func(o provision.Object) *telemetry.Client { return telemetry.NewClient(deploy.AdminURL(o), hc) }
	dir, err := os.MkdirTemp(u.svc.Dir(), "store-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the copy contains prompts; its mode is 0600
	for attempt := 1; ; attempt++ {
		b, err := copyBackup(ctx, localBackup(filepath.Join(dir, "copied.backup")), at(from), at(to))
		if err == nil {
			u.printLine("copied the store of %s to its new machine: %s", from.ID, printable.Count(b.Messages, "entry"))
			return nil
		}
		if attempt == copyAttempts || ctx.Err() != nil {
			return fmt.Errorf("copying the store of %s to its new machine: %w", from.ID, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(copyRetry):
		}
	}
}

// copyBackup backs up one store and restores the backup into another one.
func copyBackup(ctx context.Context, file localBackup, from, to *telemetry.Client) (b telemetry.Backup, err error) {
	if b, _, err = file.write(ctx, func(w io.Writer) error { return from.Backup(ctx, w) }); err != nil {
		return b, err
	}
	f, err := file.open(ctx)
	if err != nil {
		return b, err
	}
	defer f.Close()
	return to.Restore(ctx, f, true) // what the new store has is of the seconds since its start
}
