package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// startOf returns the record of a replica's start, with its boot; nil if it is unknown. The time of the launch is
// from the cloud's clock, with which the clocks of its machines agree.
func startOf(o provision.Object, r AgentReport, now time.Time) *telemetry.Start {
	switch {
	case o.Kind != provision.KindReplica || o.TerminatedReason != "":
		return nil
	case !Reachable(o) || errors.Is(r.Err, identity.ErrUntrusted) || r.Err == nil && r.Phase == agent.PhaseWaiting:
		return telemetry.BootingStart(o.Started, now)
	case r.Err != nil:
		return nil
	}
	return r.Start.WithBoot(o.Started)
}

// startsOf returns the starts of replicas in clouds that balancers show, sorted by ID: those in progress, and
// those that have just ended. Processes on this computer start within seconds.
func startsOf(v *serviceView, now time.Time) (starts []telemetry.ReplicaStart) {
	for _, o := range v.have {
		if cloud.RunsOnThisComputer(o.Region) {
			continue
		}
		s := startOf(o, v.seen[o.ID], now)
		if s != nil && (!s.Ready || now.Sub(s.StartedAt.Add(time.Duration(s.Seconds*float64(time.Second)))) <= telemetry.StartShownFor) {
			starts = append(starts, telemetry.ReplicaStart{Replica: o.ID, Region: o.Region, GPU: gpuTypeOf(o), Start: s})
		}
	}
	slices.SortFunc(starts, func(a, b telemetry.ReplicaStart) int { return cmp.Compare(a.Replica, b.Replica) })
	return starts[:min(len(starts), telemetry.MaxStarts)]
}

// machinesOf returns what the agents of replicas report about their machines, sorted by ID.
func machinesOf(v *serviceView) (machines []telemetry.ReplicaMachine) {
	for _, o := range v.have {
		r, responds := v.seen[o.ID]
		if o.Kind != provision.KindReplica || o.TerminatedReason != "" || !responds || r.Err != nil {
			continue
		}
		m := telemetry.ReplicaMachine{Replica: o.ID, Version: r.Version, GPUs: r.GPUStats}
		if r.Phase == agent.PhaseReady {
			m.ReadySince = r.Start.ReadySince()
		}
		if m.Version != "" || m.ReadySince != nil || len(m.GPUs) > 0 {
			machines = append(machines, m)
		}
	}
	slices.SortFunc(machines, func(a, b telemetry.ReplicaMachine) int { return cmp.Compare(a.Replica, b.Replica) })
	return machines[:min(len(machines), telemetry.MaxMachines)]
}

// failureAlerts returns the alert about a replica that cannot become ready; none for other machines.
func failureAlerts(service string, o provision.Object, s agent.Status) []telemetry.Alert {
	f := s.Failure
	if o.Kind != provision.KindReplica || f == nil || !f.Permanent {
		return nil
	}
	return []telemetry.Alert{{
		Severity: telemetry.SeverityWarning, Kind: telemetry.AlertReplica, Region: o.Region, Object: o.ID, Message: f.String(),
		NextStep: f.Hint + "; see 'skyserve logs " + service + " " + o.ID + "'",
	}}
}

// storeFailures stores the alerts about failed replicas.
func (rc *Reconciler) storeFailures(dl *Delivery, seen map[string]AgentReport) {
	var alerts []telemetry.Alert
	for _, o := range dl.Machines {
		if r := seen[o.ID]; r.Err == nil {
			alerts = append(alerts, failureAlerts(dl.Service, o, r.Status)...)
		}
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.failures = alerts
}

// StartFailedError is the error of a machine that does not become ready until an operator changes
// something.
type StartFailedError struct {
	ID      string
	Failure agent.Failure
}

// Error returns the machine and its failure.
func (e *StartFailedError) Error() string { return fmt.Sprintf("%s failed: %s", e.ID, &e.Failure) }

// FailedStarts returns the failed machines in an error of Deliver.
func FailedStarts(err error) (failed []*StartFailedError) {
	var one *StartFailedError
	switch joined := err.(type) { //nolint:errorlint // walks the tree of errors
	case *StartFailedError:
		return append(failed, joined)
	case interface{ Unwrap() []error }:
		for _, e := range joined.Unwrap() {
			failed = append(failed, FailedStarts(e)...)
		}
	default:
		if errors.As(err, &one) {
			failed = append(failed, one)
		}
	}
	return failed
}

// failureWatch decides when a delivery to a machine has failed. An agent reports its last failure until
// the next attempt succeeds: a failure counts only if an attempt failed during this delivery, since the
// operator may have corrected the cause before it.
type failureWatch struct {
	hasBaseline bool
	before      int // attempts that had failed at the first status
}

// check returns the failure of a machine that further attempts will not resolve; nil = go on.
func (w *failureWatch) check(o provision.Object, s agent.Status) error {
	f := s.Failure
	if f == nil {
		*w = failureWatch{hasBaseline: true}
		return nil
	}
	if !w.hasBaseline {
		*w = failureWatch{hasBaseline: true, before: f.Attempts}
	}
	if f.Permanent && f.Attempts > w.before {
		return &StartFailedError{o.ID, *f}
	}
	return nil
}

// ensure delivers a deployment to a machine once and returns its status. The fence of the context may
// prevent it.
func (dl *Delivery) ensure(ctx context.Context, o provision.Object, d agent.Deployment) (agent.Status, error) {
	if err := provision.CheckFence(ctx); err != nil {
		return agent.Status{}, err
	}
	if dl.ensurer != nil {
		return dl.ensurer(ctx, o, d)
	}
	return dl.AgentClient(o).Ensure(ctx, dl.Machine(o), d)
}
