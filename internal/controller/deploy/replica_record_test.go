package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

func TestUnhealthyReasons(t *testing.T) {
	begin := time.Date(2026, 11, 24, 22, 0, 0, 0, time.UTC)
	spec := &service.Spec{Models: []service.Model{{Name: "m", ReadyTimeout: 30 * time.Minute}}}
	is := func(phase agent.Phase, change func(*agent.Status)) AgentReport {
		s := agent.Status{Phase: phase, Reason: "loads"}
		if change != nil {
			change(&s)
		}
		return AgentReport{Status: s}
	}
	sees := func(n int) func(*agent.Status) { return func(s *agent.Status) { s.GPUs = &n } }
	hung := AgentReport{Err: context.DeadlineExceeded}
	broken := func(s *agent.Status) { s.GPUError = "Xid 79 on 0000:65:00: GPU has fallen off the bus" }
	for _, tt := range []struct {
		name   string
		report AgentReport
		after  time.Duration // since it was first seen
		ready  bool          // it was ready before
		dead   bool          // the network is not the cause
		exempt bool
		// complete states that its driver has seen all GPUs before.
		complete bool
		silent   time.Duration // since it does not respond
		local    bool          // it is a process on this computer
		want     string
	}{
		{name: "starts", report: is(agent.PhaseWeights, nil), after: 29 * time.Minute},
		{name: "late", report: is(agent.PhaseWeights, nil), after: 30 * time.Minute, want: "not ready within 30m0s: loads"},
		{name: "fails", report: is(agent.PhaseFailed, nil), after: 30 * time.Minute, want: "not ready within 30m0s: loads"},
		{name: "ready", report: is(agent.PhaseReady, nil), after: time.Hour},
		{name: "was ready", report: is(agent.PhaseFailed, nil), after: time.Hour, ready: true},
		{name: "is drained", report: is(agent.PhaseWeights, nil), after: time.Hour, exempt: true},
		{name: "interrupted", report: is(agent.PhaseInterrupted, broken), after: time.Hour},
		{name: "network fails", report: AgentReport{Err: errors.New("timeout")}, after: time.Hour},
		{name: "machine is dead", report: AgentReport{Err: errors.New("timeout")}, after: time.Hour, dead: true, want: "not ready within 30m0s: its agent does not respond"},
		{name: "hangs, may recover", report: hung, ready: true, dead: true, silent: 179 * time.Second, local: true},
		{name: "hangs", report: hung, ready: true, dead: true, silent: 3 * time.Minute, local: true, want: "no response for 3m0s"},
		{name: "hangs and is drained", report: hung, ready: true, dead: true, silent: time.Hour, local: true, exempt: true},
		{name: "no proof that it hangs", report: hung, ready: true, silent: time.Hour, local: true},
		{name: "responds again", report: is(agent.PhaseStarting, nil), ready: true, dead: true, silent: time.Hour, local: true},
		{name: "VM hangs", report: hung, ready: true, dead: true, silent: time.Hour},
		{name: "GPU error", report: is(agent.PhaseReady, broken), ready: true, want: "fatal GPU error: Xid 79 on 0000:65:00: GPU has fallen off the bus"},
		{name: "GPUs of the type unknown", report: is(agent.PhaseReady, sees(7)), ready: true},
		{name: "GPU missing", report: is(agent.PhaseReady, sees(7)), ready: true, complete: true, want: "GPU missing: its machine has 8 GPUs, its driver sees 7"},
		{name: "all GPUs", report: is(agent.PhaseReady, sees(8)), ready: true},
	} {
		o := provision.Object{ID: "us-0", Kind: provision.KindReplica, Handle: "h", Region: "aws/us", Labels: map[string]string{"model": "m"}, Offering: &provision.Offering{Region: "aws/us", Type: "p5.48xlarge", Capacity: "spot", GPUs: 8}}
		if tt.local {
			o.Region = "local/us"
		}
		was := seenReplica{FirstSeen: begin, WasReady: tt.ready, AllGPUs: tt.complete, ConfigHash: configHashes(spec)["m"]}
		if tt.silent > 0 {
			was.UnresponsiveSince = begin.Add(tt.after - tt.silent)
		}
		r := &replicaRecord{Seen: map[string]seenReplica{"h": was}}
		in := healthInput{spec: spec, have: []provision.Object{o}, known: []provision.Object{o}, seen: map[string]AgentReport{"us-0": tt.report}, exempt: map[string]bool{"us-0": tt.exempt}, now: begin.Add(tt.after), dead: func(provision.Object) bool { return tt.dead }}
		got := r.findUnhealthy(in)
		if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || got[0].reason != tt.want || got[0].failed == tt.ready) {
			t.Errorf("%s: %+v, want %q", tt.name, got, tt.want)
		}
		if again := r.findUnhealthy(in); len(again) > 0 {
			t.Errorf("%s: retired twice", tt.name)
		}
		if _, ok := r.unhealthy(in.have)["us-0"]; ok != (tt.want != "") {
			t.Errorf("%s: retired %v", tt.name, ok)
		}
	}
}

// A missing GPU is judged by another machine of the same type, also if that one has failed since.
func TestMissingGPUNeedsEvidence(t *testing.T) {
	machine := func(id, kind string) provision.Object {
		return provision.Object{ID: id, Kind: provision.KindReplica, Handle: id, Region: "aws/us", Labels: map[string]string{"model": "m"}, Offering: &provision.Offering{Type: kind, GPUs: 8}}
	}
	have := []provision.Object{machine("a", "p5.48xlarge"), machine("b", "p5.48xlarge"), machine("c", "g6.48xlarge")}
	r := &replicaRecord{}
	judged := func(a, b, c int) (ids []string) {
		seen := map[string]AgentReport{}
		for id, n := range map[string]int{"a": a, "b": b, "c": c} {
			seen[id] = AgentReport{Status: agent.Status{Phase: agent.PhaseReady, GPUs: &n}}
		}
		spec := &service.Spec{Models: []service.Model{{Name: "m"}}}
		for _, gone := range r.findUnhealthy(healthInput{spec: spec, have: have, known: have, seen: seen, now: time.Unix(0, 0)}) {
			ids = append(ids, gone.object.ID)
		}
		return ids
	}
	if got := judged(7, 7, 7); got != nil {
		t.Errorf("no machine has all GPUs: retired %q", got)
	}
	if got := judged(8, 7, 7); !slices.Equal(got, []string{"b"}) {
		t.Errorf("a has all: retired %q, want b", got)
	}
	if got := judged(6, 7, 7); !slices.Equal(got, []string{"a"}) {
		t.Errorf("a had all: retired %q, want a", got)
	}
}

// A changed configuration starts the time again; a machine that no longer exists is forgotten.
func TestReadyTimeoutBeginsAgain(t *testing.T) {
	begin := time.Date(2026, 11, 24, 22, 0, 0, 0, time.UTC)
	spec := &service.Spec{Models: []service.Model{{Name: "m"}}}
	o := provision.Object{ID: "us-0", Kind: provision.KindReplica, Handle: "h", Labels: map[string]string{"model": "m"}}
	r := &replicaRecord{}
	at := func(minutes int) []unhealthyReplica {
		return r.findUnhealthy(healthInput{spec: spec, have: []provision.Object{o}, known: []provision.Object{o}, seen: map[string]AgentReport{"us-0": {Status: agent.Status{Phase: agent.PhaseFailed}}}, now: begin.Add(time.Duration(minutes) * time.Minute)})
	}
	at(0)
	spec = &service.Spec{Models: []service.Model{{Name: "m", Engine: service.Engine{Image: "fixed:1"}}}}
	if got := append(at(30), at(74)...); len(got) > 0 {
		t.Errorf("retired %+v before 45 minutes with the new image", got)
	}
	if got := at(75); len(got) != 1 {
		t.Errorf("retired %+v, want us-0", got)
	}
	o.Handle = "next"
	if got := at(76); len(got) > 0 || len(r.Seen) != 1 {
		t.Errorf("retired %+v, seen %+v", got, r.Seen)
	}
}

// Kept log lines are bounded, printable, and without secrets.
func TestFailureLines(t *testing.T) {
	var log strings.Builder
	for i := range 40 {
		fmt.Fprintf(&log, "line %d\n\n", i)
	}
	log.WriteString("key=topsecret-longer and topsecret\n\x1b[31mred\x1b[0m Authorization: Bearer abcdefghij\n")
	log.WriteString("hf_abcdefghijklmnopqrstuvwx sk-abcdefghijklmnopqrst AKIAABCDEFGHIJKLMNOP no\n" + strings.Repeat("é", 1000) + "\n")
	got := failureLines(log.String(), []string{"topsecret", "topsecret-longer", "no", "multi-line-1\nmulti-line-2"})
	if len(got) != telemetry.MaxFailureLines || got[len(got)-5] != "line 39" {
		t.Fatalf("%d lines: %q", len(got), got)
	}
	want := []string{"key=[masked] and [masked]", "red Authorization: Bearer [masked]", "[masked] [masked] [masked] no"}
	if !slices.Equal(got[len(got)-4:len(got)-1], want) {
		t.Errorf("%q, want %q", got[len(got)-4:len(got)-1], want)
	}
	if last := got[len(got)-1]; len(last) > maxFailureLine+3 || !strings.HasSuffix(last, "é...") {
		t.Errorf("a line of %d bytes, ending with %q", len(last), last[len(last)-8:])
	}
	if got := failureLines("", nil); len(got) != 0 {
		t.Errorf("an empty log has the lines %q", got)
	}
}

// One failure is kept for each model and region, the newest first.
func TestFailuresAreBounded(t *testing.T) {
	r := &replicaRecord{}
	for i := range 200 {
		o := provision.Object{ID: fmt.Sprint("r", i), Region: "aws/us", Labels: map[string]string{"model": fmt.Sprint("m", i%120)}}
		r.addFailure(unhealthyReplica{object: o, reason: "late"}, "", nil, time.Unix(int64(i), 0))
	}
	if len(r.Failures) != maxFailures || r.Failures[0].Replica != "r199" || len(r.Backoffs) != 0 {
		t.Errorf("%d failures, first %+v, %d backoffs", len(r.Failures), r.Failures[0], len(r.Backoffs))
	}
}

// A replica that its cloud interrupts has an alert as long as its machine exists, although its balancer stops using it at
// once. It equals the balancer's own, so that both are shown once.
func TestInterruptionAlerts(t *testing.T) {
	have := []provision.Object{{ID: "us-0", Kind: provision.KindReplica, Region: "aws/us"}, {ID: "us-1", Kind: provision.KindReplica, Region: "aws/us"}, {ID: "lb-us-0", Kind: provision.KindBalancer, Region: "aws/us"}}
	taken := AgentReport{Status: agent.Status{Phase: agent.PhaseInterrupted, Reason: "interruption at 03:02:00 UTC"}}
	alerts := interruptionAlerts(have, map[string]AgentReport{"us-0": taken, "us-1": {Status: agent.Status{Phase: agent.PhaseReady}}, "us-9": taken})
	if len(alerts) != 1 || alerts[0].Region != "aws/us" || alerts[0].Line() != "warning: interruption us-0: the cloud interrupts its machine: interruption at 03:02:00 UTC; no action is needed: a replacement starts ('skyserve events' shows it)" {
		t.Errorf("got %+v", alerts)
	}
}

func TestLaunchAlerts(t *testing.T) {
	at := time.Date(2026, 11, 25, 2, 15, 0, 0, time.UTC)
	r := &replicaRecord{}
	r.AddFailure(provision.Backoff{BackoffKey: provision.BackoffKey{Model: "m", Region: "aws/us", Type: "g6.xlarge", Capacity: "spot"}, Last: at, Reason: "not ready within 45m"}, provision.BackoffPolicy{First: time.Hour, Max: time.Hour})
	held := []*provision.HeldError{{ID: "us-3", Region: "aws/us", Kind: provision.HeldByBudget, Reason: "its machine costs $4.00/h"}, {ID: "us-4", Kind: provision.HeldByLaunches, Reason: "20 machines were launched"}}
	shown := r.launchesOf(provision.LaunchBounds{LaunchesPerHour: 20, BudgetPerHour: 40}, []provision.Object{{Handle: "h", CostPerHour: 38}}, []string{"us-3"}, at)
	var got []string
	for _, a := range launchAlerts(shown, held, map[string]seenReplica{"us-1": {UnhealthyKind: unhealthyGPU, UnhealthyReason: "fatal GPU error: Xid 79"}, "us-2": {UnhealthyReason: "not ready"}}) {
		got = append(got, a.Line())
	}
	want := []string{
		"warning: budget: the budget blocks launches: us-3: its machine costs $4.00/h; raise autoscale.budget, or lower replicas.min or max",
		"warning: gpu us-1: fatal GPU error: Xid 79; it receives no requests and is being replaced",
		"warning: launch m aws/us spot g6.xlarge: m on spot g6.xlarge in aws/us failed once; next try at 2026-11-25 03:15:00 UTC; last failure: not ready within 45m; read the log lines of the last failure in 'skyserve status'; changing the model in service.yaml ends the backoff",
		"warning: launch max_launches_per_hour: 20 machines were launched; find out why so many machines are launched; or raise autoscale.max_launches_per_hour",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	lines := shown.Lines()
	if len(lines) != 3 || lines[0] != "budget: $38.00/h of $40.00/h" || lines[1] != "held: us-3" || !strings.HasPrefix(lines[2], "backoff: m on spot g6.xlarge in aws/us failed once") {
		t.Errorf("lines %q", lines)
	}
	if len(launchAlerts(nil, nil, nil)) != 0 {
		t.Error("alerts before the first observation")
	}
}
