package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// rollingWorld is a service whose replicas an `up` with another program replaces.
type rollingWorld struct {
	t       *testing.T
	spec    *service.Spec
	clouds  *conformance.Memory
	program string
	log     []string
	// waitReady is called while a replacement starts; nil = it is ready at once.
	waitReady func(o provision.Object) error
}

// newRollingWorld launches a service. Replicas of the first region may have one more than they are, those of the second not.
func newRollingWorld(t *testing.T) *rollingWorld {
	spec := parse(t, strings.Replace(twoClouds, "{min: 1, max: 3}", "{min: 1, max: 1}", 1))
	w := &rollingWorld{t: t, spec: spec, clouds: newCloud(spec), program: "1"}
	if err := w.up(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.log = nil
	return w
}

func (w *rollingWorld) deployer() *deploy.Deployer {
	dp := newDeployer(w.spec, w.clouds)
	dp.UserData = func(n cloud.MachineInput) (string, error) { // only the machines of replicas change
		if n.Kind == provision.KindBalancer {
			return "balancer", nil
		}
		return n.ID + " " + w.program, nil
	}
	var mu sync.Mutex
	dp.WaitReady = func(_ context.Context, o provision.Object) error {
		if o.Kind != provision.KindReplica {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		w.log = append(w.log, fmt.Sprintf("%s starts beside %s", o.ID, strings.Join(slices.DeleteFunc(w.replicas(), func(id string) bool { return id == o.ID }), " ")))
		if w.waitReady != nil {
			return w.waitReady(o)
		}
		return nil
	}
	dp.Drain = func(_ context.Context, o provision.Object) {
		mu.Lock()
		defer mu.Unlock()
		w.log = append(w.log, "drain "+o.ID)
	}
	return dp
}

// up plans and applies, as a program that has just started, and checks that the final plan desires what runs.
func (w *rollingWorld) up(ctx context.Context) error {
	w.t.Helper()
	dp := w.deployer()
	plan, err := dp.Plan(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	if plan, err = dp.Up(ctx, plan, nil); err != nil {
		return err
	}
	var desired []string
	for _, d := range plan.Desired {
		if d.Kind == provision.KindReplica {
			desired = append(desired, d.ID)
		}
	}
	if slices.Sort(desired); !slices.Equal(desired, w.replicas()) {
		w.t.Errorf("the final plan desires %q, %q run", desired, w.replicas())
	}
	return nil
}

// replicas returns the ids of the running replicas.
func (w *rollingWorld) replicas() (ids []string) {
	for _, o := range w.clouds.Objects() {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" {
			ids = append(ids, o.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// handleOf returns the handle of a machine.
func (w *rollingWorld) handleOf(id string) string {
	objects := w.clouds.Objects()
	return objects[slices.IndexFunc(objects, func(o provision.Object) bool { return o.ID == id })].Handle
}

// unchanged checks that another up changes nothing.
func (w *rollingWorld) unchanged() {
	w.t.Helper()
	if p, err := w.deployer().Plan(w.t.Context()); err != nil || len(p.Changes) != 0 {
		w.t.Errorf("up again: %+v, %v", p.Changes, err)
	}
}

// Where replicas.max permits one more, a replica is drained and terminated once its replacement, which has another id, is
// ready, one replica after the other. Where it does not, the old one leaves first.
func TestReplicasAreReplacedOnceOthersServe(t *testing.T) {
	w := newRollingWorld(t)
	w.program = "2"
	if err := w.up(t.Context()); err != nil {
		t.Fatal(err)
	}
	var us, eu []string
	for _, step := range w.log {
		if strings.Contains(step, "europe-west4-0 starts") || step == "drain europe-west4-0" {
			eu = append(eu, strings.Split(step, " beside")[0])
		} else {
			us = append(us, strings.ReplaceAll(step, "europe-west4-0 ", ""))
		}
	}
	wantUS := []string{
		"us-east-1-2 starts beside us-east-1-0 us-east-1-1", "drain us-east-1-0",
		"us-east-1-0 starts beside us-east-1-1 us-east-1-2", "drain us-east-1-1",
	}
	if wantEU := []string{"drain europe-west4-0", "europe-west4-0 starts"}; !slices.Equal(us, wantUS) || !slices.Equal(eu, wantEU) {
		t.Errorf("got %q and %q, want %q and %q", us, eu, wantUS, wantEU)
	}
	if got, want := w.replicas(), []string{"europe-west4-0", "us-east-1-0", "us-east-1-2"}; !slices.Equal(got, want) {
		t.Errorf("%q run, want %q", got, want)
	}
	w.unchanged()
}

// A replacement that does not become ready is terminated. The old replica stays undrained, as do all others.
func TestReplacementThatFailsIsTerminated(t *testing.T) {
	w := newRollingWorld(t)
	w.program = "2"
	broken := errors.New("exit status 1")
	w.waitReady = func(provision.Object) error { return broken }
	before := machines(w.clouds)
	err := w.up(t.Context())
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "waiting for us-east-1-2, the replacement of us-east-1-0, to become ready: exit status 1; us-east-1-0 keeps running") {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(machines(w.clouds), before) || len(w.log) != 1 {
		t.Errorf("%q run, before %q; did %q", machines(w.clouds), before, w.log)
	}
	w.waitReady, w.program = nil, "1"
	if err := w.up(t.Context()); err != nil {
		t.Errorf("back to the earlier version: %v", err)
	}
	w.unchanged()
}

// interrupted runs an up that ends while the replacement of us-east-1-0, which is us-east-1-2, starts.
func (w *rollingWorld) interrupted() {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	w.waitReady = func(o provision.Object) error {
		if o.ID == "us-east-1-2" {
			stop()
			return context.Canceled
		}
		return nil
	}
	if err := w.up(ctx); !errors.Is(err, context.Canceled) || !slices.Contains(w.replicas(), "us-east-1-0") || !slices.Contains(w.replicas(), "us-east-1-2") {
		w.t.Fatalf("interrupted: %v, %q run", err, w.replicas())
	}
	w.log, w.waitReady = nil, nil
}

// A plan that also replaces a machine knows the replacement that an interrupted up launched: replicas.min replicas run after
// it, also where replicas.max is lower than before.
func TestPlanReplacingKnowsEarlierReplacement(t *testing.T) {
	for _, id := range []string{"us-east-1-0", "us-east-1-1", "us-east-1-2", "lb-us-east-1-0"} {
		w := newRollingWorld(t)
		w.program = "2"
		w.interrupted()
		w.spec.Regions[0].Replicas.Max = 2
		dp := w.deployer()
		p, err := dp.Plan(t.Context())
		if err == nil {
			p, err = dp.PlanReplacing(p, map[string]string{w.handleOf(id): "no response"})
		}
		if err == nil {
			_, err = dp.Up(t.Context(), p, nil)
		}
		if got := w.replicas(); err != nil || len(got) != 3 { // one of them in europe-west4
			t.Errorf("after replacing %s: %v, %q run; did %q", id, err, got, w.log)
		}
		w.unchanged()
	}
}

// After an interrupted up, the next one waits for the replacement that exists, launches no other, and deletes the old one.
func TestInterruptedReplacementContinues(t *testing.T) {
	w := newRollingWorld(t)
	w.program = "2"
	w.interrupted()
	if err := w.up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := w.replicas(), []string{"europe-west4-0", "us-east-1-0", "us-east-1-2"}; !slices.Equal(got, want) {
		t.Errorf("%q run, want %q; did %q", got, want, w.log)
	}
	w.unchanged()
}
