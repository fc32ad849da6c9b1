package deploy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// summary returns the kinds, actors and objects of events.
func summary(events []telemetry.Event) string {
	var all []string
	for _, e := range events {
		all = append(all, string(e.Kind)+" "+e.Object+" by "+e.Actor+": "+e.Reason)
	}
	return strings.Join(all, "; ")
}

func TestEventsOfChanges(t *testing.T) {
	want := provision.Desired{Kind: provision.KindReplica, ID: "us-0", Region: "local/us"}
	died := provision.Object{Kind: provision.KindReplica, ID: "us-0", Region: "local/us", TerminatedReason: "process exited (pid 7)"}
	ended := provision.Object{Kind: provision.KindReplica, ID: "us-0", Region: "aws/us-east-1", TerminatedReason: "terminated: User initiated"}
	runs := provision.Object{Kind: provision.KindReplica, ID: "us-0", Region: "local/us"}
	for name, c := range map[string]struct {
		change provision.Change
		want   string
	}{
		"new":                   {provision.Change{Action: provision.ActionLaunch, Desired: want, Reason: "new"}, "launch us-0 by controller: new"},
		"after its death":       {provision.Change{Action: provision.ActionLaunch, Desired: want, Observed: died, Reason: "restarted"}, "death us-0 by controller: process exited (pid 7); launch us-0 by controller: restarted"},
		"restarted":             {provision.Change{Action: provision.ActionLaunch, Desired: want, Observed: died, Reason: died.TerminatedReason}, "death us-0 by controller: process exited (pid 7); launch us-0 by controller: replaces one that ended: process exited (pid 7)"},
		"replaced":              {provision.Change{Action: provision.ActionReplace, Desired: want, Observed: runs, Reason: "image changed"}, "replace us-0 by controller: image changed"},
		"removed":               {provision.Change{Action: provision.ActionTerminate, Observed: runs, Reason: "excess"}, "termination us-0 by controller: excess"},
		"dead, ID not reused":   {provision.Change{Action: provision.ActionTerminate, Observed: died, Reason: "excess"}, "death us-0 by controller: process exited (pid 7)"},
		"listed after deletion": {provision.Change{Action: provision.ActionTerminate, Observed: ended}, ""},
		"reload":                {provision.Change{Action: provision.ActionReload, Desired: want, Observed: runs}, ""},
		"firewall, no machine":  {provision.Change{Action: provision.ActionLaunch, Desired: provision.Desired{Kind: provision.KindFirewall, ID: "fw"}}, ""},
		"balancer of a new one": {provision.Change{Action: provision.ActionLaunch, Desired: provision.Desired{Kind: provision.KindBalancer, ID: "lb-us-0"}, Reason: "new"}, "launch lb-us-0 by controller: new"},
	} {
		if got := summary(ChangeEvents(c.change)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestEventsOfStatuses(t *testing.T) {
	expires := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	status := func(phase agent.Phase, more ...func(*agent.Status)) AgentReport {
		s := agent.Status{Phase: phase, Reason: "why", Revision: "1", Expires: expires}
		for _, f := range more {
			f(&s)
		}
		return AgentReport{Status: s}
	}
	renewed := func(s *agent.Status) { s.Expires = expires.AddDate(0, 3, 0) }
	delivered := func(s *agent.Status) { s.Revision = "2" }
	lost := AgentReport{Err: errors.New("no route")}
	for name, c := range map[string]struct {
		reports []AgentReport
		want    string
	}{
		"first observation":     {[]AgentReport{status(agent.PhaseFailed)}, ""},
		"starts":                {[]AgentReport{status(agent.PhaseStarting), status(agent.PhaseReady)}, ""},
		"engine fails":          {[]AgentReport{status(agent.PhaseReady), status(agent.PhaseStarting), status(agent.PhaseWeights), status(agent.PhaseReady)}, "death us-0 by controller: why; recovery us-0 by controller: why"},
		"fails repeatedly":      {[]AgentReport{status(agent.PhaseReady), status(agent.PhaseFailed), status(agent.PhaseFailed)}, "death us-0 by controller: why"},
		"new deployment":        {[]AgentReport{status(agent.PhaseReady), status(agent.PhaseStarting, delivered), status(agent.PhaseReady, delivered)}, ""},
		"does not respond":      {[]AgentReport{status(agent.PhaseReady), lost, status(agent.PhaseReady)}, ""},
		"interrupted":           {[]AgentReport{status(agent.PhaseReady), status(agent.PhaseInterrupted), status(agent.PhaseInterrupted)}, "interruption us-0 by cloud: why"},
		"interrupted at first":  {[]AgentReport{status(agent.PhaseInterrupted)}, "interruption us-0 by cloud: why"},
		"certificate renewed":   {[]AgentReport{status(agent.PhaseReady), status(agent.PhaseReady, renewed)}, "certificate us-0 by controller: the previous one expires 2026-12-01"},
		"unknown after failure": {[]AgentReport{lost, status(agent.PhaseReady, renewed)}, ""},
	} {
		var events []telemetry.Event
		before, failed := map[string]AgentReport{}, map[string]bool{}
		for _, r := range c.reports {
			now := map[string]AgentReport{"us-0": r}
			events = append(events, statusEvents([]provision.Object{{ID: "us-0", Handle: "i-1"}}, before, now, failed)...)
			before = now
		}
		if got := summary(events); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A failure is recorded at most once a minute, and progress only when a change is complete.
func TestReconcilerRecordsChangesAndFailures(t *testing.T) {
	var events []telemetry.Event
	rc := &Reconciler{}
	c := provision.Change{Action: provision.ActionLaunch, Desired: provision.Desired{Kind: provision.KindReplica, ID: "us-0"}, Reason: "new"}
	rc.recordProgress(c, provision.PhaseDone, nil) // without a recorder
	rc.RecordEventsWith(func(e telemetry.Event) { events = append(events, e) })
	rc.recordProgress(c, provision.PhaseFailed, errors.New("no capacity"))
	rc.recordProgress(c, provision.PhaseDone, nil)
	rc.logError(t.Context(), errors.New("quota exceeded"))
	rc.logError(t.Context(), errors.New("no capacity"))
	if got, want := summary(events), "launch us-0 by controller: new; failure machines by controller: quota exceeded"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
