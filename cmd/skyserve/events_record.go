package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/local"
)

// recordTimeout limits the time of one request about a change to one balancer: the change must not wait for it.
const recordTimeout = 3 * time.Second

// changeLog collects the events of one command, which changes a service.
type changeLog struct {
	reason string // why the operator makes the change
	plan   *time.Time
	events []telemetry.Event
}

// add adds an event of this machine's operator.
func (l *changeLog) add(e telemetry.Event) {
	now := time.Now()
	e.At, e.Actor, e.Plan = now, telemetry.OperatorActor(operatorName()), cmp.Or(e.Plan, l.plan)
	e.ID = operatorName() + "-" + strconv.FormatInt(now.UnixNano(), 36) + "-" + strconv.Itoa(len(l.events))
	e.Reason = cmp.Or(e.Reason, l.reason)
	l.events = append(l.events, e)
}

// addChange adds the event of a completed change of a machine. The controller records deaths; the reason
// of the launch that follows contains the cause.
func (l *changeLog) addChange(c provision.Change, p provision.ChangePhase) {
	if p != provision.PhaseDone {
		return
	}
	for _, e := range deploy.ChangeEvents(c) {
		if e.Kind == telemetry.EventDeath {
			continue
		}
		if l.reason != "" {
			e.Reason = l.reason + "; " + e.Reason
		}
		l.add(e)
	}
}

// send records the collected events at the first balancer that responds, also after an interruption.
// The change has been made: a failure is only a warning. The events are then sent with the next ones: an up may begin
// while no balancer responds.
func (l *changeLog) send(ctx context.Context, svc local.Service, errOut io.Writer) {
	if len(l.events) == 0 {
		return
	}
	events := l.events
	l.events = nil
	_, admins, _, err := knownAdmins(svc.Name())
	if err == nil {
		err = recordEvents(context.WithoutCancel(ctx), admins, events)
	}
	if err != nil {
		l.events = events
		printMessage(errOut, labelWarning, "the change is not in 'skyserve events': %v", err)
	}
}

// recordEvents records events at the first balancer that responds.
func recordEvents(ctx context.Context, admins []*telemetry.Client, events []telemetry.Event) (err error) {
	return tryAdmins(ctx, admins, func(ctx context.Context, api *telemetry.Client) error { return api.RecordEvents(ctx, events) })
}

// tryAdmins sends a request to the first balancer that responds; one that hangs leaves the next one its own time.
func tryAdmins(ctx context.Context, admins []*telemetry.Client, send func(context.Context, *telemetry.Client) error) (err error) {
	for _, api := range admins {
		try, cancel := context.WithTimeout(ctx, recordTimeout)
		err = send(try, api)
		cancel()
		if err == nil || errors.Is(err, telemetry.ErrNotFound) { // an earlier version cannot do it
			return nil
		}
	}
	return err
}

// recordDecision makes a decision about a replica, and adds an event if the decision has changed the service, also if it
// failed after that. If nothing was to be changed, it prints why, the text of unchanged after the id.
func (s *scaling) recordDecision(kind telemetry.EventKind, id, message, unchanged string, decide func() error) error {
	before := s.Changed
	s.Changed = false
	err := decide()
	switch {
	case s.Changed:
		s.log.add(telemetry.Event{Kind: kind, Region: regionOf(s.svc, s.spec, id), Object: id, Message: message + " " + id})
	case err == nil:
		fmt.Fprintf(s.errOut, "%s %s\n", id, unchanged)
	}
	s.Changed = s.Changed || before
	return err
}

// regionOf returns the region of a replica on this computer or of a static region; empty if it is unknown.
func regionOf(svc local.Service, spec *service.Spec, id string) service.Region {
	objects, err := svc.Objects()
	if err != nil {
		return ""
	}
	for _, o := range objects {
		if o.ID == id {
			return o.Region
		}
	}
	for _, r := range deploy.StaticReplicas(spec) {
		if r.ID == id {
			return r.Region
		}
	}
	return ""
}

// notePlan adds the event of an applied plan; the following events name the plan.
func (s *scaling) notePlan(p plan.Proposal) {
	s.log.plan = p.At
	e := telemetry.Event{Kind: telemetry.EventApply, Message: "applied the plan"}
	if p.At != nil {
		e.Object = p.At.UTC().Format(time.RFC3339)
	}
	s.log.add(e)
}

// sendChange records the events of a change of replicas.
func (s *scaling) sendChange(ctx context.Context, failure error) {
	if !s.Changed {
		return
	}
	if failure != nil {
		s.log.add(telemetry.Event{Kind: telemetry.EventFailure, Object: s.spec.Name, Message: "changing replicas failed", Reason: failure.Error()})
	}
	s.log.send(ctx, s.svc, s.errOut)
}

// applyRecorded applies the changes and records them with their begin and end; a run without changes is
// not recorded.
func (u *upRun) applyRecorded(ctx context.Context) error {
	if len(u.shownPlan().Changes) == 0 {
		return u.applyChanges(ctx)
	}
	u.log.reason = cmp.Or(u.reason, "skyserve up")
	u.log.add(telemetry.Event{Kind: telemetry.EventRolloutBegin, Object: u.spec.Name, Message: fmt.Sprintf("up began (changes: %d)", len(u.shownPlan().Changes))})
	if hasBalancer(u.changes.Observed) {
		u.log.send(ctx, u.svc, io.Discard) // a repair may begin while no balancer responds
	}
	err := u.applyChanges(ctx)
	end := telemetry.Event{Kind: telemetry.EventRolloutEnd, Object: u.spec.Name, Message: "up ended"}
	var coded *exitError
	if err != nil && (!errors.As(err, &coded) || coded.err != nil) { // exit codes without an error report changes
		end.Message, end.Reason = "up failed", err.Error()
	}
	u.log.add(end)
	warnings := u.errOut
	if err != nil || u.wait != waitReplicas {
		warnings = io.Discard // balancers may not respond yet
	}
	u.log.send(ctx, u.svc, warnings)
	return err
}

// hasBalancer reports whether a balancer exists.
func hasBalancer(have []provision.Object) bool {
	for _, o := range have {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" {
			return true
		}
	}
	return false
}

// recordDown records that the service is being deleted, for those who watch its events.
func (d *down) recordDown(ctx context.Context) {
	if !hasBalancer(d.have) {
		return
	}
	l := changeLog{reason: "skyserve down"}
	l.add(telemetry.Event{Kind: telemetry.EventRolloutBegin, Object: d.svc.Name(), Message: "down began: the service is deleted"})
	l.send(ctx, d.svc, io.Discard)
}

// recordOperator records that an operator was added or revoked.
func recordOperator(ctx context.Context, svc local.Service, errOut io.Writer, who, message string) {
	operatorLog(who, message).send(ctx, svc, errOut)
}

// operatorLog returns the event of an operator who was added or revoked.
func operatorLog(who, message string) *changeLog {
	l := &changeLog{reason: "skyserve connect"}
	l.add(telemetry.Event{Kind: telemetry.EventOperator, Object: who, Message: message})
	return l
}
