package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller/rollout"
	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/local"
)

// open reads the world's service.
func (w *world) open() *rollout.Running {
	w.Helper()
	r, err := rollout.Open(w.svc)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// count decides a count in us.
func (w *world) count(r *rollout.Running, n int) local.Wanted {
	w.Helper()
	to, err := r.Wanted.WithCount(r.Spec, "m", "local/us", n)
	if err != nil {
		w.Fatal(err)
	}
	return to
}

// carry carries a decision out and says in order what happened.
func (w *world) carry(r *rollout.Running, to local.Wanted) (changed bool, events []string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	changed, err := r.Carry(ctx, to, rollout.Scaling{
		Progress: func(c provision.Change, p provision.Phase, _ error) {
			if p == provision.PhaseDone && c.Kind() == provision.KindReplica {
				events = append(events, string(c.Action)+" "+c.ID())
			}
		},
		Ready: func(id string, drained bool) { events = append(events, fmt.Sprintf("ready %s %v", id, drained)) },
	})
	if err != nil {
		w.Fatal(err)
	}
	return changed, events
}

func TestReplicasAreAddedAtOnceAndRemovedOneByOne(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	before := w.pids()
	changed, events := w.carry(w.open(), w.count(w.open(), 3))
	slices.Sort(events)
	if want := []string{"launch us-1", "launch us-2", "ready us-1 false", "ready us-2 false"}; !changed || !reflect.DeepEqual(events, want) {
		t.Errorf("got %v %q, want %q", changed, events, want)
	}
	if changed, events := w.carry(w.open(), w.count(w.open(), 3)); changed || len(events) > 0 {
		t.Errorf("again: got %v %q", changed, events)
	}
	if got := w.up(w.yaml(1, "m")); len(got) > 0 {
		t.Errorf("up undid it: %q", got)
	}
	if _, events := w.carry(w.open(), w.count(w.open(), 1)); !reflect.DeepEqual(events, []string{"terminate us-2", "terminate us-1"}) {
		t.Errorf("got %q", events)
	}
	after := w.pids()
	for id, pid := range before {
		if after[id] != pid {
			t.Errorf("%s was restarted", id)
		}
	}
	if len(after) != len(before) {
		t.Errorf("got %v, had %v", after, before)
	}
}

// A change that is cut short after each of its steps is finished by `up` as well as
// by the same change.
func TestAChangeThatIsCutShortIsFinishedLater(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	ctx, cut := context.WithCancel(context.Background())
	r := w.open()
	_, err := r.Carry(ctx, w.count(r, 3), rollout.Scaling{Progress: func(_ provision.Change, p provision.Phase, _ error) {
		if p == provision.PhaseDone {
			cut()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	w.up(w.yaml(1, "m"))
	if changed, _ := w.carry(w.open(), w.count(w.open(), 3)); changed || len(w.pids()) != 7 {
		t.Errorf("up did not finish it: %v", w.pids())
	}
	ctx, cut = context.WithCancel(context.Background())
	r = w.open()
	_, err = r.Carry(ctx, w.count(r, 1), rollout.Scaling{Progress: func(c provision.Change, p provision.Phase, _ error) {
		if p == provision.PhaseBegun && c.Action == provision.ActionTerminate {
			cut()
		}
	}})
	if err == nil {
		t.Fatal("it was not cut short")
	}
	w.carry(w.open(), w.count(w.open(), 1))
	if pids := w.pids(); len(pids) != 5 || pids["us-0"] == "" {
		t.Errorf("got %v", pids)
	}
}

func TestADrainedReplicaStaysDrained(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(2, "m"))
	r := w.open()
	if changed, events := w.carry(r, r.Wanted.WithDrained("us-1", true)); !changed || !reflect.DeepEqual(events, []string{"ready us-1 true"}) {
		t.Errorf("got %v %q", changed, events)
	}
	if got := w.up(w.yaml(2, "m")); len(got) > 0 {
		t.Errorf("up undid it: %q", got)
	}
	status := w.status()
	for _, rep := range status.Regions[0].Replicas {
		if rep.Drained != (rep.ID == "us-1") || rep.Drained && (rep.State != service.StateDraining || rep.PID == "") {
			t.Errorf("got %+v", rep)
		}
	}
	if status.State != rollout.StateReady {
		t.Errorf("the service is %s", status.State)
	}
	r = w.open()
	if changed, _ := w.carry(r, r.Wanted.WithDrained("us-1", false)); !changed {
		t.Error("no change")
	}
	if got := w.up(w.yaml(2, "m")); len(got) > 0 || len(w.open().Wanted.Drained) > 0 {
		t.Errorf("got %q", got)
	}
}

// status is the service now.
func (w *world) status() *rollout.Status {
	w.Helper()
	s, err := rollout.GetStatus(context.Background(), w.svc)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func TestAProposalBecomesADecision(t *testing.T) {
	spec, err := service.Parse("service.yaml", []byte(`name: chat
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4}, {type: H100}]}]
regions:
  - {name: local/us, replicas: {min: 1, max: 5}}
  - {name: static/paris, endpoints: ["http://10.0.0.7:8000", "http://10.0.0.8:8000"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	row := func(region, gpu string, now, then int) plan.Change {
		return plan.Change{Model: "m", Region: region, GPU: gpu, Now: now, Delta: then - now, Then: then}
	}
	const paris7, paris8 = "paris-10-0-0-7-8000", "paris-10-0-0-8-8000"
	tests := []struct {
		name    string
		had     []string // drained
		changes []plan.Change
		us      int
		drained []string
		undone  string // "" = all is done
	}{
		{"more", nil, []plan.Change{row("local/us", "L4", 1, 3), row("static/paris", "L4", 2, 2)}, 3, nil, ""},
		{"of another GPU", nil, []plan.Change{row("local/us", "L4", 2, 2), row("local/us", "H100", 0, 1)}, 2, nil, "1 more on H100 cannot be added"},
		{"above the bounds", nil, []plan.Change{row("local/us", "L4", 1, 9)}, 1, nil, "replicas must be 1 to 5"},
		{"fewer machines", nil, []plan.Change{row("local/us", "L4", 1, 1), row("static/paris", "L4", 2, 1)}, 1, []string{paris8}, ""},
		{"a machine again", []string{paris7}, []plan.Change{row("local/us", "L4", 1, 1), row("static/paris", "L4", 1, 2)}, 1, nil, ""},
		{"more machines than there are", nil, []plan.Change{row("local/us", "L4", 1, 2), row("static/paris", "L4", 2, 3)}, 2, nil, "machines cannot be added here: list 1 more under endpoints in service.yaml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &rollout.Running{Spec: spec, Wanted: local.Wanted{Drained: tt.had}}
			to, undone := r.Follow(plan.Proposal{Changes: tt.changes}, time.Now())
			if got := len(to.Numbers(spec, "m", "local/us")); got != tt.us {
				t.Errorf("%d replicas in us, want %d", got, tt.us)
			}
			if !slices.Equal(to.Drained, tt.drained) {
				t.Errorf("drained %q, want %q", to.Drained, tt.drained)
			}
			if got := strings.Join(undone, "; "); (got == "") != (tt.undone == "") || !strings.Contains(got, tt.undone) {
				t.Errorf("undone: %q, want %q", got, tt.undone)
			}
		})
	}
}

// Where replicas may be lent, a plan that wants fewer lends them, and one that wants
// more takes them back first.
func TestAProposalLendsWhatItDoesNotNeed(t *testing.T) {
	spec, err := service.Parse("service.yaml", []byte(`name: chat
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4}]}]
regions: [{name: local/us, replicas: {min: 1, max: 5}}]
autoscale: {donate: true, donate_for: 10m}
`))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 14, 0, 0, 0, time.UTC)
	follow := func(w local.Wanted, now, then int) local.Wanted {
		r := &rollout.Running{Spec: spec, Wanted: w}
		to, undone := r.Follow(plan.Proposal{Changes: []plan.Change{{Model: "m", Region: "local/us", GPU: "L4", Now: now, Delta: then - now, Then: then}}}, at)
		if len(undone) > 0 {
			t.Fatal(undone)
		}
		return to
	}
	w := follow(follow(local.Wanted{}, 1, 4), 4, 2)
	if ids := w.IDsOf(spec, "m", "local/us"); len(ids) != 4 || !slices.Equal(w.Serving(ids), []string{"us-0", "us-1"}) {
		t.Fatalf("got %v, of which serve %v", ids, w.Serving(ids))
	}
	if d := w.Donation("us-3"); d == nil || !d.Since.Equal(at) || d.Until.Sub(at) != 10*time.Minute {
		t.Errorf("got %v", d)
	}
	w = follow(w, 2, 5)
	if ids := w.IDsOf(spec, "m", "local/us"); len(w.Donated) != 0 || len(ids) != 5 {
		t.Errorf("got %v, %v", ids, w.Donated)
	}
}
