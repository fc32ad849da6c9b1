package deploy

import (
	"cmp"
	"fmt"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// failureInterval is the minimum interval between two recorded failures of reconciling: errors may
// alternate while a region does not respond.
const failureInterval = time.Minute

var _ controller.EventRecording = (*Reconciler)(nil)

// RecordEventsWith implements controller.EventRecording.
func (rc *Reconciler) RecordEventsWith(record func(telemetry.Event)) { rc.eventSink = record }

func (rc *Reconciler) recordAll(events []telemetry.Event) {
	if rc.eventSink == nil {
		return
	}
	for _, e := range events {
		rc.eventSink(e)
	}
}

// recordProgress logs a completed change and records it. The strategy's changes are recorded by controller.scaler.
func (rc *Reconciler) recordProgress(c provision.Change, p provision.ChangePhase, err error) {
	rc.progress(c, p, err)
	if p == provision.PhaseDone {
		rc.recordAll(ChangeEvents(c))
	}
}

// recordFailure records that reconciling failed, at most once in failureInterval.
func (rc *Reconciler) recordFailure(text string) {
	if time.Since(rc.lastFailure) < failureInterval {
		return
	}
	rc.lastFailure = time.Now()
	rc.recordAll([]telemetry.Event{{Actor: telemetry.ActorController, Kind: telemetry.EventFailure, Object: "machines", Message: "changing machines failed, retrying", Reason: text}})
}

// ChangeEvents returns the events of a completed change of a machine: a launch that replaces a dead
// machine is preceded by its death, and the deletion of a dead one on this computer is its death.
func ChangeEvents(c provision.Change) []telemetry.Event {
	if !c.Kind().IsMachine() {
		return nil
	}
	e := telemetry.Event{
		Actor: telemetry.ActorController, Region: c.Region(), Object: c.ID(), Reason: c.Reason, Model: cmp.Or(c.Desired.Labels["model"], c.Observed.Labels["model"]),
	}
	died := e
	died.Kind, died.Message, died.Reason = telemetry.EventDeath, e.Object+" ended unexpectedly", c.Observed.TerminatedReason
	switch c.Action {
	case provision.ActionLaunch:
		e.Kind, e.Message = telemetry.EventLaunch, "launched "+e.Object
		if died.Reason != "" && e.Reason == died.Reason { // else it reads as if the launched one had ended
			e.Reason = "replaces one that ended: " + died.Reason
		}
	case provision.ActionReplace:
		e.Kind, e.Message = telemetry.EventReplace, "replaced "+e.Object
	case provision.ActionTerminate:
		switch {
		case died.Reason == "":
		case cloud.RunsOnThisComputer(c.Observed.Region): // it died, and its ID is not used again
			return []telemetry.Event{died}
		default: // clouds still list machines that were deleted before: only their remaining resources are deleted
			return nil
		}
		e.Kind, e.Message = telemetry.EventTermination, "removed "+e.Object
	case provision.ActionReload, provision.ActionRepair:
		return nil // the balancer records its reload
	}
	if died.Reason != "" {
		return []telemetry.Event{died, e}
	}
	return []telemetry.Event{e}
}

// statusEvents returns the events of machines whose status has changed between two observations.
// Nothing is concluded about machines that did not respond. failed are the machines whose failure was
// recorded, which statusEvents updates.
func statusEvents(have []provision.Object, before, now map[string]AgentReport, failed map[string]bool) (events []telemetry.Event) {
	for _, o := range have {
		was, known := before[o.ID]
		is, responded := now[o.ID]
		if !responded || is.Err != nil {
			continue
		}
		e := telemetry.Event{Actor: telemetry.ActorController, Region: o.Region, Object: o.ID, Model: o.Labels["model"], Reason: is.Reason}
		add := func(kind telemetry.EventKind, format string, args ...any) {
			e.Kind, e.Message = kind, fmt.Sprintf(format, args...)
			events = append(events, e)
		}
		if is.Phase == agent.PhaseInterrupted && was.Phase != agent.PhaseInterrupted {
			e.Actor, e.ID = telemetry.ActorCloud, fmt.Sprintf("interruption-%s-%d", o.Handle, is.InterruptionAt.Unix()) // a new leader observes it again
			add(telemetry.EventInterruption, "the cloud interrupts %s", o.ID)
			continue
		}
		if !known || was.Err != nil {
			continue
		}
		switch {
		case was.Phase == agent.PhaseReady && was.Revision == is.Revision && (is.Phase == agent.PhaseFailed || is.Phase == agent.PhaseStarting || is.Phase == agent.PhaseWeights):
			failed[o.ID] = true
			add(telemetry.EventDeath, "a process of %s failed", o.ID)
		case is.Phase == agent.PhaseReady && failed[o.ID]:
			delete(failed, o.ID)
			add(telemetry.EventRecovery, "%s is ready again", o.ID)
		}
		if !was.Expires.IsZero() && is.Expires.After(was.Expires) {
			e.Reason = fmt.Sprintf("the previous one expires %s", was.Expires.UTC().Format(time.DateOnly))
			add(telemetry.EventCertificate, "certificate of %s renewed until %s", o.ID, is.Expires.UTC().Format(time.DateOnly))
		}
	}
	return events
}
