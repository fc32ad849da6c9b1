package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
)

// An added or revoked operator has an event, by the operator who runs the command.
func TestOperatorIsRecorded(t *testing.T) {
	e := operatorLog("bob@laptop", "revoked bob@laptop").events
	if len(e) != 1 || e[0].Actor != telemetry.OperatorActor(operatorName()) || e[0].Kind != telemetry.EventOperator || e[0].Object != "bob@laptop" || e[0].Message != "revoked bob@laptop" || e[0].Reason != "skyserve connect" || e[0].ID == "" {
		t.Errorf("got %+v", e)
	}
}

// Events that no balancer receives are sent with the next ones: the begin of a repair that makes a balancer respond.
func TestUnsentEventsAreSentLater(t *testing.T) {
	svc := storedService(t, rightFile)
	var received []telemetry.Event
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Events []telemetry.Event }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		received = append(received, body.Events...)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	var l changeLog
	l.add(telemetry.Event{Kind: telemetry.EventRolloutBegin, Message: "up began"})
	l.send(t.Context(), svc, io.Discard)
	if err := storeAdminURLs(svc, server.URL); err != nil {
		t.Fatal(err)
	}
	l.add(telemetry.Event{Kind: telemetry.EventRolloutEnd, Message: "up ended"})
	l.send(t.Context(), svc, io.Discard)
	l.send(t.Context(), svc, io.Discard)
	if len(received) != 2 || received[0].Message != "up began" || received[1].Message != "up ended" || received[0].ID == received[1].ID {
		t.Errorf("got %+v", received)
	}
}

// balancerFunc is the connection to a balancer's admin API.
type balancerFunc func(*http.Request) (*http.Response, error)

func (f balancerFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A balancer that accepts connections and never responds does not use up the time to record the events at another one.
func TestEventsPassHungBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorded := 0
		hung := balancerFunc(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		live := balancerFunc(func(r *http.Request) (*http.Response, error) {
			if err := r.Context().Err(); err != nil {
				return nil, err
			}
			recorded++
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
		})
		admins := []*telemetry.Client{
			telemetry.NewClient("lb-us", &http.Client{Transport: hung}),
			telemetry.NewClient("lb-eu", &http.Client{Transport: live}),
		}
		if err := recordEvents(t.Context(), admins, []telemetry.Event{{Message: "drained us-0"}}); err != nil || recorded != 1 {
			t.Errorf("recorded %d times, want 1: %v", recorded, err)
		}
	})
}

// Balancers that accept connections and never respond delay a report by a second each.
func TestReportPassesHungBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := balancerFunc(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		answer := func(body string) balancerFunc {
			return func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
			}
		}
		var admins []*telemetry.Client
		for _, b := range []balancerFunc{hung, hung, answer(`{"complete":false}`), answer(`{"complete":true,"events":[{"id":"1"}]}`)} {
			admins = append(admins, telemetry.NewClient("http://lb", &http.Client{Transport: b}))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begun := time.Now()
		r, err := fetchEvents(ctx, admins, telemetry.EventQuery{})
		if err != nil || !r.Complete || len(r.Events) != 1 || time.Since(begun) != 2*reportDelay {
			t.Errorf("got %+v after %s: %v", r, time.Since(begun), err)
		}
	})
}

// A decision about a replica that changes nothing has no event, also if the command has changed another replica before.
func TestUnchangedReplicaHasNoEvent(t *testing.T) {
	storedService(t, "name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\n")
	for name, d := range map[string]decision{
		"drain": drainDecision("us-9", true), "resume": drainDecision("us-9", false), "donate": donateDecision("us-9"), "reclaim": reclaimDecision("us-9"),
	} {
		s, unlock, err := openScaling(t.Context(), "chat", strings.NewReader(""), io.Discard, true, cloudFlags{})
		if err != nil {
			t.Fatal(err)
		}
		s.Changed = true
		err = d(t.Context(), s)
		unlock()
		if len(s.log.events) > 0 || !s.Changed {
			t.Errorf("%s (%v): the events are %+v", name, err, s.log.events)
		}
	}
}

// The changes of `plan --apply` name the plan, and the operator with the reason. The controller records deaths.
func TestAppliedPlanIsRecorded(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	s := &scaling{upRun: &upRun{up: &up{}}}
	s.log.reason = "peak"
	s.notePlan(plan.Proposal{At: &at})
	s.log.addChange(provision.Change{
		Action: provision.ActionLaunch, Desired: provision.Desired{Kind: provision.KindReplica, ID: "us-1", Region: "local/us"},
		Observed: provision.Object{TerminatedReason: "process exited"}, Reason: "new",
	}, provision.PhaseDone)
	s.log.addChange(provision.Change{Action: provision.ActionTerminate, Observed: provision.Object{Kind: provision.KindReplica, ID: "us-2"}}, provision.PhaseFailed)
	var got []string
	for _, e := range s.log.events {
		got = append(got, string(e.Kind)+" "+e.Object+": "+e.Reason)
		if e.Actor != telemetry.OperatorActor(operatorName()) || e.Plan == nil || !e.Plan.Equal(at) {
			t.Errorf("got %+v", e)
		}
	}
	if want := []string{"apply 2026-11-27T12:00:00Z: peak", "launch us-1: peak; new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
