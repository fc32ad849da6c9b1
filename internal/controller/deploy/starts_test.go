package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// permanent is a failure that further attempts repeat, after a number of them.
func permanent(attempts int) *agent.Failure {
	return &agent.Failure{Kind: agent.FailureImageNotFound, Permanent: true, Attempts: attempts, Message: "manifest unknown", Hint: "correct the image"}
}

// script is what the agent of a machine reports: a status from a time on.
type script []struct {
	from time.Duration
	agent.Status
}

func (s script) at(elapsed time.Duration) agent.Status {
	var now agent.Status
	for _, step := range s {
		if elapsed >= step.from {
			now = step.Status
		}
	}
	return now
}

// A delivery ends once each awaited replica is ready or has failed, and not with a temporary failure.
func TestDeliveryEndsWithFailures(t *testing.T) {
	ready, loads := agent.Status{Phase: agent.PhaseReady}, agent.Status{Phase: agent.PhaseWeights}
	fails := func(f *agent.Failure) agent.Status { return agent.Status{Phase: agent.PhaseFailed, Failure: f} }
	temporary := &agent.Failure{Kind: agent.FailureUnknown, Attempts: 2, Message: "i/o timeout"}
	slow := script{{0, loads}, {10 * time.Minute, ready}}
	for _, tt := range []struct {
		name     string
		machines map[string]script
		awaited  func(provision.Object) bool
		failed   []string
		within   time.Duration // the time of the delivery, at most a polling interval longer
		timeout  bool
	}{
		{"all become ready", map[string]script{"a": slow, "b": {{0, ready}}}, nil, nil, 10 * time.Minute, false},
		{"the only one fails", map[string]script{"a": {{0, loads}, {time.Minute, fails(permanent(2))}}}, nil, []string{"a"}, time.Minute, false},
		{"one fails, another is slow", map[string]script{"a": slow, "b": {{0, loads}, {time.Minute, fails(permanent(2))}}}, nil, []string{"b"}, 10 * time.Minute, false},
		{"both fail", map[string]script{"a": {{0, loads}, {time.Minute, fails(permanent(2))}}, "b": {{0, loads}, {2 * time.Minute, fails(permanent(3))}}}, nil, []string{"a", "b"}, 2 * time.Minute, false},
		{"a temporary failure", map[string]script{"a": {{0, loads}, {time.Minute, fails(temporary)}, {3 * time.Minute, ready}}}, nil, nil, 3 * time.Minute, false},
		{"a failure from before this run, then corrected", map[string]script{"a": {{0, fails(permanent(9))}, {time.Minute, loads}, {3 * time.Minute, ready}}}, nil, nil, 3 * time.Minute, false},
		{"a failure from before this run, which repeats", map[string]script{"a": {{0, fails(permanent(9))}, {time.Minute, fails(permanent(10))}}}, nil, []string{"a"}, time.Minute, false},
		{"a balancer whose port is in use", map[string]script{"lb": {{0, loads}, {time.Minute, fails(permanent(3))}}, "a": {{0, ready}}}, nil, []string{"lb"}, time.Minute, false},
		{"a failed replica is not awaited", map[string]script{"a": {{0, loads}, {time.Minute, fails(permanent(2))}}, "lb": {{0, ready}}}, func(o provision.Object) bool { return o.Kind == provision.KindBalancer }, nil, 0, false},
		{"only the timeout ends it", map[string]script{"a": {{0, loads}, {time.Minute, fails(temporary)}}}, nil, nil, 30 * time.Minute, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				observed := 0
				dl := &Delivery{Service: "chat", Awaited: tt.awaited, OnStatus: func(string, agent.Status) { observed++ }}
				dl.ensurer = func(_ context.Context, o provision.Object, _ agent.Deployment) (agent.Status, error) {
					return tt.machines[o.ID].at(time.Since(began)), nil
				}
				deployments := map[string]agent.Deployment{}
				for id := range tt.machines {
					kind := provision.KindReplica
					if id == "lb" {
						kind = provision.KindBalancer
					}
					dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: kind, Region: "aws/us-east-1"})
					deployments[id] = agent.Deployment{Revision: "new"}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				err := dl.Deliver(ctx, deployments)
				var failed []string
				for _, f := range FailedStarts(err) {
					failed = append(failed, f.ID)
				}
				slices.Sort(failed)
				took := time.Since(began)
				if !slices.Equal(failed, tt.failed) || took < tt.within || took > tt.within+pollInterval || (err != nil) != (len(failed) > 0 || tt.timeout) || observed == 0 {
					t.Errorf("failed are %q after %s, observed %d (%v)", failed, took, observed, err)
				}
				if len(failed) == 1 && !strings.Contains(err.Error(), failed[0]+" failed: image_not_found: manifest unknown") {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

// A controller waits for a balancer that applies its deployment, also past a short silence, but not for one that has gone.
func TestDeliveryDoesNotWaitForLostBalancer(t *testing.T) {
	for name, tt := range map[string]struct {
		respondsAt func(since time.Duration) bool
		within     time.Duration
		lost       bool
	}{
		"lost before":      {func(time.Duration) bool { return false }, 4 * time.Second, true},
		"lost during":      {func(since time.Duration) bool { return since < 2*time.Second }, 6 * time.Second, true},
		"silent for a bit": {func(since time.Duration) bool { return since < time.Second || since > 3*time.Second }, 11 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				lb := provision.Object{ID: "lb", Kind: provision.KindBalancer, Region: "aws/us-east-1"}
				dl := &Delivery{Service: "chat", Machines: []provision.Object{lb}}
				dl.ensurer = func(context.Context, provision.Object, agent.Deployment) (agent.Status, error) {
					since := time.Since(began)
					switch {
					case !tt.respondsAt(since):
						return agent.Status{}, errors.New("connection refused")
					case since < 10*time.Second:
						return agent.Status{Phase: agent.PhaseStarting}, nil
					}
					return agent.Status{Phase: agent.PhaseReady}, nil
				}
				seen := map[string]AgentReport{"lb": {Status: agent.Status{Phase: agent.PhaseReady, Revision: "input.old"}}}
				err := dl.DeliverDue(t.Context(), seen, map[string]agent.Deployment{"lb": {Revision: "input.new"}})
				if took := time.Since(began); took > tt.within || (err != nil) != tt.lost {
					t.Errorf("it took %s: %v", took, err)
				}
			})
		})
	}
}

func TestStartOfMachines(t *testing.T) {
	launched := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := launched.Add(time.Minute)
	is := provision.Object{Kind: provision.KindReplica, Region: "aws/us-east-1", PrivateIP: netip.MustParseAddr("10.0.0.1"), Started: launched}
	change := func(f func(*provision.Object)) provision.Object { o := is; f(&o); return o }
	first := &telemetry.Start{StartedAt: launched.Add(20 * time.Second), Seconds: 40, Phases: []telemetry.StartPhase{{Name: telemetry.StartEnrolment, Seconds: 10}, {Name: telemetry.StartImage, Seconds: 30, Running: true}}}
	for name, tt := range map[string]struct {
		o    provision.Object
		r    AgentReport
		want string
	}{
		"without an address": {change(func(o *provision.Object) { o.PrivateIP = netip.Addr{} }), AgentReport{}, "boot 1m0s"},
		"not enrolled":       {is, AgentReport{Err: fmt.Errorf("connecting: %w", identity.ErrUntrusted)}, "boot 1m0s"},
		"unresponsive":       {is, AgentReport{Err: errors.New("no response")}, ""},
		"pulls its image":    {is, AgentReport{Status: agent.Status{Phase: agent.PhaseImage, Start: first}}, "image 30s"},
		"terminated":         {change(func(o *provision.Object) { o.TerminatedReason = "by its cloud" }), AgentReport{}, ""},
		"a balancer":         {change(func(o *provision.Object) { o.Kind = provision.KindBalancer }), AgentReport{}, ""},
	} {
		if got := startOf(tt.o, tt.r, now).Summary(); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
	if s := startOf(is, AgentReport{Status: agent.Status{Phase: agent.PhaseImage, Start: first}}, now); s.Phases[0].Name != telemetry.StartBoot || s.Seconds != 60 {
		t.Errorf("the first start is %+v", s)
	}
}

// A replica that cannot become ready raises an alert with its next step.
func TestFailedReplicaRaisesAlert(t *testing.T) {
	rc := &Reconciler{}
	dl := &Delivery{Service: "chat"}
	seen := map[string]AgentReport{}
	for id, f := range map[string]*agent.Failure{"a": permanent(2), "b": {Kind: agent.FailureUnknown}, "c": nil} {
		dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: provision.KindReplica, Region: "aws/us-east-1"})
		seen[id] = AgentReport{Status: agent.Status{Phase: agent.PhaseFailed, Failure: f}}
	}
	rc.storeFailures(dl, seen)
	want := "warning: replica a: image_not_found: manifest unknown; correct the image; see 'skyserve logs chat a'"
	if got := rc.Alerts(); len(got) != 1 || got[0].Line() != want || got[0].Kind != telemetry.AlertReplica {
		t.Errorf("alerts %+v, want %q", got, want)
	}
	rc.storeFailures(dl, nil)
	if got := rc.Alerts(); len(got) != 0 {
		t.Errorf("later: %+v", got)
	}
}
