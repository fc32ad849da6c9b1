package deploy

import (
	"context"
	"slices"
	"time"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// restartBackoff is the time between two starts of one balancer on this computer: one that was killed is back at once, and
// one that ends again and again, because of a request or a full disk, does not use up the computer.
var restartBackoff = provision.BackoffPolicy{First: 5 * time.Second, Max: 5 * time.Minute}

// restartsForgotten is how long a balancer must run until its earlier starts do not count.
const restartsForgotten = time.Hour

// balancerStart is the last start of a balancer on this computer by this leader, and how many there were shortly before.
type balancerStart struct {
	at    time.Time
	count int
}

// restartsBalancer reports whether a change starts the machine of a balancer on this computer that has ended, with its
// disk, its key and its member of the store. One whose disk is lost has another key and waits for `up --replace`. `up` and
// the controller hold the lock of the service while they change machines, so that a machine that `up` replaces is not
// started.
func (rc *Reconciler) restartsBalancer(bs *bundleState, c provision.Change) bool {
	if c.Kind() != provision.KindBalancer || c.Action != provision.ActionLaunch || !cloud.RunsOnThisComputer(c.Region()) || !bs.content.isDirect(c.Region()) {
		return false
	}
	last := rc.balancerStarts[c.ID()]
	return last.count == 0 || !rc.now().Before(last.at.Add(restartBackoff.Delay(last.count, c.ID())))
}

// restartBalancers starts the machines of balancers on this computer that have ended. A command that waits for balancers
// needs this: the controller starts none while the command holds the lock of the service.
func (dp *Deployer) restartBalancers(ctx context.Context, have []provision.Object, progress provision.ProgressFunc) error {
	if !slices.ContainsFunc(have, func(o provision.Object) bool {
		return o.Kind == provision.KindBalancer && o.TerminatedReason != "" && cloud.RunsOnThisComputer(o.Region)
	}) {
		return nil
	}
	filter := dp.Filter
	defer func() { dp.Filter = filter }()
	dp.Filter = func(_ *MachinePlan, c provision.Change) bool {
		return c.Kind() == provision.KindBalancer && c.Action == provision.ActionLaunch && cloud.RunsOnThisComputer(c.Region())
	}
	p, err := dp.planFor(have, nil)
	if err == nil {
		_, err = provision.Apply(ctx, p.Changes, dp.launcher(), dp.applyOptions(p, progress))
	}
	return err
}

// countRestarts records the starts of balancers among changes.
func (rc *Reconciler) countRestarts(changes provision.Changes) {
	for _, c := range changes {
		if c.Kind() != provision.KindBalancer || c.Action != provision.ActionLaunch {
			continue
		}
		if rc.balancerStarts == nil {
			rc.balancerStarts = map[string]balancerStart{}
		}
		last := rc.balancerStarts[c.ID()]
		if rc.now().Sub(last.at) > restartsForgotten {
			last.count = 0
		}
		rc.balancerStarts[c.ID()] = balancerStart{rc.now(), last.count + 1}
	}
}
