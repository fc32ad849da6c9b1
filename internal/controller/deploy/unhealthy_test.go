package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

const bounded = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - {name: llama, engine: {kind: vllm}, gpus: [{type: L4}], ready_timeout: 30m, secrets: {HF_TOKEN: env:HF}}
regions:
  - {name: aws/us-east-1, replicas: {min: 2, max: 4}}
autoscale: {max_launches_per_hour: 6, budget: {per_hour: 4}}
`

// boundedWorld is a service whose machines report scripted statuses, with the times of its launches.
type boundedWorld struct {
	*reconcilerWorld
	// status changes the status of a replica, which is ready otherwise.
	status   func(o provision.Object, s *agent.Status)
	launches []time.Time
	born     map[string]time.Time // by handle
	mostCost float64
}

func newBoundedWorld(t *testing.T) (*boundedWorld, *deploy.Reconciler) {
	u := &boundedWorld{reconcilerWorld: newReconcilerWorldOf(t, bounded), status: func(provision.Object, *agent.Status) {}, born: map[string]time.Time{}}
	return u, u.started()
}

// started returns a reconciler whose process has just started.
func (u *boundedWorld) started() *deploy.Reconciler {
	rc := u.reconciler()
	rc.SetProber(u.probe)
	rc.SetLogs(func(id string) string { return "loading " + id + "\nsecret-of-HF\nValueError: no such image layer\n" })
	return rc
}

// reconcileEvery runs the reconciler at an interval for a duration.
func (u *boundedWorld) reconcileEvery(t *testing.T, rc *deploy.Reconciler, interval, d time.Duration) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < d; time.Sleep(interval) {
		rc.Reconcile(t.Context(), always)
		rc.Wait()
	}
}

// probe records new machines and reports the status of all.
func (u *boundedWorld) probe(have []provision.Object) map[string]deploy.AgentReport {
	seen, cost := map[string]deploy.AgentReport{}, 0.0
	for _, o := range have {
		s := agent.Status{Phase: agent.PhaseReady}
		if cost += o.CostPerHour; o.Kind == provision.KindReplica {
			if _, known := u.born[o.Handle]; !known {
				u.born[o.Handle] = time.Now()
				u.launches = append(u.launches, time.Now())
			}
			u.status(o, &s)
		}
		seen[o.ID] = deploy.AgentReport{Status: s}
	}
	u.mostCost = max(u.mostCost, cost)
	return seen
}

// A wrong image costs few machines a night: a replica that never becomes ready is terminated after
// ready_timeout, launched again after a growing time, also over restarts, and at once after a change.
func TestReplicaThatNeverStartsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, rc := newBoundedWorld(t)
		u.status = func(_ provision.Object, s *agent.Status) {
			s.Phase, s.Reason = agent.PhaseFailed, "engine: container exited"
		}
		u.reconcileEvery(t, rc, 30*time.Second, 34*time.Minute)
		if got := u.replicas(); len(got) != 0 {
			t.Errorf("after ready_timeout %q still run", got)
		}
		current, err := rc.Current()
		if err != nil || current.Launches == nil || len(current.Launches.Failures) != 1 {
			t.Fatalf("%+v, %v", current.Launches, err)
		}
		f := current.Launches.Failures[0]
		if f.Model != "llama" || f.Reason != "not ready within 30m0s: engine: container exited" || !slices.Equal(f.Log[1:], []string{"[masked]", "ValueError: no such image layer"}) {
			t.Errorf("failure %+v", f)
		}
		if b := current.Launches.Backoffs; len(b) != 1 || b[0].Failures != 2 || !strings.Contains(b[0].Line, "llama on on_demand g6.xlarge in aws/us-east-1 failed 2 times; next try at ") {
			t.Errorf("backoffs %+v", b)
		}
		if alerts := rc.Alerts(); !slices.ContainsFunc(alerts, func(a telemetry.Alert) bool { return a.Kind == telemetry.AlertLaunch }) {
			t.Errorf("alerts %+v", alerts)
		}
		if text := u.store.values["launches"]; !strings.Contains(text, "no such image layer") || strings.Contains(text, "secret-of") {
			t.Errorf("the record: %s", text)
		}
		for range 6 { // the night, with a restart every two hours
			rc = u.started()
			u.reconcileEvery(t, rc, 2*time.Minute, 2*time.Hour)
		}
		if n := len(u.launches); n < 4 || n > 14 {
			t.Errorf("%d machines in a night, want a try now and then", n)
		}
		u.status = func(provision.Object, *agent.Status) {}
		changed := strings.Replace(bounded, "kind: vllm", "kind: vllm, image: vllm/vllm-openai:v0.33.0", 1)
		u.replaceSpec(t, changed)
		u.reconcileFor(t, rc, time.Minute, always)
		if got := u.replicas(); len(got) != 2 {
			t.Errorf("after a change %q run, want both at once", got)
		}
		if current, _ = rc.Current(); len(current.Launches.Backoffs) != 0 {
			t.Errorf("backoffs after a success: %+v", current.Launches.Backoffs)
		}
	})
}

// A machine with a fatal GPU error is taken out and replaced at once; the others stay.
func TestReplicaWithGPUErrorIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, rc := newBoundedWorld(t)
		u.reconcileFor(t, rc, time.Minute, always)
		before := map[string]string{}
		for _, o := range u.Objects() {
			before[o.ID] = o.Handle
		}
		u.status = func(o provision.Object, s *agent.Status) {
			if o.Handle == before["us-east-1-1"] {
				s.GPUError = "Xid 79 on 0000:65:00: GPU has fallen off the bus"
			}
		}
		u.reconcileFor(t, rc, 10*time.Second, always)
		current, err := rc.Current()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range current.Replicas {
			if r.Drained != (r.ID == "us-east-1-1") {
				t.Errorf("%s: drained %v", r.ID, r.Drained)
			}
		}
		if alerts := rc.Alerts(); !slices.ContainsFunc(alerts, func(a telemetry.Alert) bool { return a.Kind == telemetry.AlertGPU && a.Object == "us-east-1-1" }) {
			t.Errorf("alerts %+v", alerts)
		}
		u.reconcileFor(t, rc, 4*time.Minute, always)
		for _, o := range u.Objects() {
			if replaced := o.Handle != before[o.ID]; o.Kind == provision.KindReplica && replaced != (o.ID == "us-east-1-1") {
				t.Errorf("%s replaced: %v", o.ID, replaced)
			}
		}
		if current, _ = rc.Current(); len(current.Launches.Failures) != 1 || len(current.Launches.Backoffs) != 0 || !strings.Contains(current.Launches.Failures[0].Reason, "Xid 79") {
			t.Errorf("%+v", current.Launches)
		}
	})
}

// The strategy's launches obey the budget; replicas that run stay.
func TestBudgetHoldsScaling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, rc := newBoundedWorld(t) // a balancer and two replicas cost $1.70/h
		u.reconcileFor(t, rc, time.Minute, always)
		launched, err := rc.Apply(t.Context(), scaleOut(2), always)
		if len(launched) != 2 || err != nil {
			t.Fatalf("launched %q: %v", launched, err)
		}
		u.replaceSpec(t, strings.Replace(bounded, "per_hour: 4", "per_hour: 1", 1))
		u.ChangeObject("us-east-1-3", nil)
		u.reconcileFor(t, rc, time.Minute, always)
		if _, err = rc.Apply(t.Context(), scaleOut(1), always); err == nil || !strings.Contains(err.Error(), "the budget is $1.00/h") {
			t.Errorf("scaling beyond the budget: %v", err)
		}
		if got := u.replicas(); len(got) != 3 {
			t.Errorf("%q run, want the three that ran", got)
		}
		current, _ := rc.Current()
		if len(current.Launches.Held) != 1 || !slices.ContainsFunc(rc.Alerts(), func(a telemetry.Alert) bool { return a.Kind == telemetry.AlertBudget }) {
			t.Errorf("held %q, alerts %+v", current.Launches.Held, rc.Alerts())
		}
	})
}

// Machines that are lost all the time are replaced at most max_launches_per_hour times.
func TestLaunchesPerHourAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, rc := newBoundedWorld(t)
		u.reconcileEvery(t, rc, time.Minute, time.Minute)
		u.launches = nil // those of `up`
		for i := range 90 {
			if i%2 == 0 {
				u.ChangeObject("us-east-1-0", nil)
			}
			u.reconcileEvery(t, rc, 20*time.Second, time.Minute)
		}
		for i, at := range u.launches {
			if i >= 6 && at.Sub(u.launches[i-6]) < time.Hour {
				t.Errorf("launch %d at %s, six launches before at %s", i, at, u.launches[i-6])
			}
		}
		if len(u.launches) < 6 || u.mostCost > 4 {
			t.Errorf("%d launches, at most $%.2f/h", len(u.launches), u.mostCost)
		}
		if !slices.Contains(u.replicas(), "us-east-1-1") {
			t.Error("the other replica was removed")
		}
		if lines := fmt.Sprint(rc.Alerts()); !strings.Contains(lines, "6 machines launched in the last hour") {
			t.Errorf("alerts %s", lines)
		}
	})
}

// replaceSpec delivers another service.yaml to the controller.
func (u *boundedWorld) replaceSpec(t *testing.T, text string) {
	t.Helper()
	u.spec = parse(t, text)
	if err := os.WriteFile(filepath.Join(u.dir, "service.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func scaleOut(n int) controller.CapacityChange {
	return controller.CapacityChange{Launch: []controller.ReplicaLaunch{{Model: "llama", Region: "aws/us-east-1", Count: n}}}
}
