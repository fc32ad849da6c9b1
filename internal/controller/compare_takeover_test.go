//go:build compare && linux

package controller_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// takeoverDocument is a service whose strategy launches a replica when 70 % of the memory of a region's replicas is used,
// and donates one below 30 %. The model idle has no clients, and a GPU of its own, so that its donation lasts.
const takeoverDocument = `name: faults
models:
  - {name: org/m, engine: {kind: sim, speed: 20, kv_tokens: 9000}, gpus: [{type: L4, tps: 800}], regions: {local/us: {min: 1, max: 3}, local/eu: {min: 1, max: 3}, local/asia: {min: 1, max: 3}}}
  - {name: org/idle, engine: {kind: sim}, gpus: [{type: H100, tps: 9000}], regions: {local/us: {min: 1, max: 2}, local/eu: {min: 1, max: 2}, local/asia: {min: 1, max: 2}}}
regions:
  - {name: local/us, replicas: {min: 1, max: 3}}
  - {name: local/eu, replicas: {min: 1, max: 3}}
  - {name: local/asia, replicas: {min: 1, max: 3}}
autoscale: {strategy: reactive, donate: true, donate_price: 0.3, forecast: moving-average}
local: {port: %d}
`

const (
	// planInterval is the shortest interval of plans from two whole minutes of history, which exist after planHistory.
	planInterval, planHistory = 2 * time.Minute, 2 * time.Minute
	// strategyCooldown is the time between two changes of a model in a region.
	strategyCooldown = 15 * time.Second
)

// TestCompareTakeover compares the state before and after a change of leader: the machine of the leader is killed some
// seconds after a change of the strategy. The next leader keeps the plan until the plan's end, the donation, and the
// cooldown after the change. The store has the history of all balancers, also of the one that was killed.
func TestCompareTakeover(t *testing.T) {
	w := openControlWorld(t, takeoverDocument)
	w.replicas = []string{"asia-0", "asia-idle-0", "eu-0", "eu-idle-0", "us-0", "us-idle-0"}
	w.Run("up", w.Document)
	old := w.settle().Leadership
	region := strings.TrimSuffix(strings.TrimPrefix(old.Leader, "lb-"), "-0")
	others := slices.DeleteFunc([]string{"us", "eu", "asia"}, func(r string) bool { return r == region })
	donating, loaded := others[0], others[1]
	started := time.Now()
	w.startClients("us=1,eu=1,asia=1", "--model", "org/m")
	w.Run("replica", "add", donating, "--model", "org/idle", "--yes")
	w.awaitSnapshot("a replica is donated", func(s *telemetry.Snapshot) bool { return len(s.Donations) > 0 })
	w.awaitSnapshot("a plan is in force for the next minute", func(s *telemetry.Snapshot) bool {
		return planTime(s).Sub(started) >= planHistory && time.Since(planTime(s)) < planInterval/2
	})
	w.startClients(loaded+"=80", "--model", "org/m")
	w.awaitChanges("the strategy launches a replica", loaded, 1)
	before := w.snapshot()
	if before.Controller == nil || before.Controller.Leader != old.Leader || len(before.Donations) != 1 {
		t.Fatalf("before the fault: leader %+v, donations %+v", before.Controller, before.Donations)
	}
	w.killMachines(old.Leader)
	killed := time.Now()

	led := w.awaitSnapshot("another controller leads", func(s *telemetry.Snapshot) bool {
		return s.Controller != nil && s.Controller.Leader != "" && s.Controller.Term > before.Controller.Term
	})
	t.Logf("%s leads %.1f s after %s was killed", led.Controller.Leader, time.Since(killed).Seconds(), old.Leader)
	changes := w.awaitChanges("the next leader launches a replica", loaded, 2)
	if after := changes[1].At.Sub(changes[0].At); after < strategyCooldown || !changes[1].At.After(killed) {
		t.Errorf("two changes within %s, the second %s after the kill", after, changes[1].At.Sub(killed))
	}
	s := w.snapshot()
	if age := time.Since(planTime(&before)); age < planInterval && !planTime(&s).Equal(planTime(&before)) {
		t.Errorf("after %s, the plan of %s was replaced by that of %s", age, planTime(&before), planTime(&s))
	}
	if !reflect.DeepEqual(s.Donations, before.Donations) {
		t.Errorf("donations %+v, before %+v", s.Donations, before.Donations)
	}
	s = w.awaitSnapshot("the next leader plans", func(s *telemetry.Snapshot) bool { return planTime(s).After(planTime(&before)) })
	if after := planTime(&s).Sub(planTime(&before)); after < planInterval {
		t.Errorf("the next leader planned %s after the plan in force", after)
	}
	for _, e := range w.events(killed) {
		if e.Kind != telemetry.EventPlan { // a plan with other counts than the one before
			continue
		}
		t.Logf("%s: %s", e.Message, e.Reason)
		var minutes int
		if n, err := fmt.Sscanf(e.Reason, "forecast from %d minute", &minutes); n != 1 || !e.At.Add(-time.Duration(minutes)*time.Minute).Before(killed) {
			t.Errorf("the history of the next leader begins after the kill: %v", err)
		}
	}
	w.checkHistory(old.Leader, killed)
	w.checkState(s.Donations[0].Replica, service.StateDonated)
}

// planTime returns the time of the plan in force; zero without one.
func planTime(s *telemetry.Snapshot) time.Time {
	if s.Plan == nil || s.Plan.Error != "" || s.Plan.Waiting != "" {
		return time.Time{}
	}
	return s.Plan.At
}

// startClients starts clients until the test ends.
func (w *controlWorld) startClients(clients string, flags ...string) {
	w.t.Helper()
	cmd := w.Command(append([]string{"load", faultsName, "--workload", "arena", "--clients", clients, "--duration", "1h", "--quiet"}, flags...)...)
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
}

// awaitSnapshot waits until a condition holds for the snapshot, and returns it.
func (w *controlWorld) awaitSnapshot(what string, holds func(*telemetry.Snapshot) bool) (s telemetry.Snapshot) {
	w.t.Helper()
	for end := time.Now().Add(2 * settleLimit); ; time.Sleep(200 * time.Millisecond) {
		if s = w.snapshot(); holds(&s) {
			w.t.Logf("%s: %s", time.Now().Format(time.TimeOnly), what)
			return s
		}
		if time.Now().After(end) {
			w.t.Fatalf("not %s: controller %+v, plan %+v, donations %+v", what, s.Controller, s.Plan, s.Donations)
		}
	}
}

// awaitChanges waits for a number of launches by the strategy in a region, and returns them, oldest first.
func (w *controlWorld) awaitChanges(what, region string, n int) (changes []telemetry.Event) {
	w.t.Helper()
	w.awaitSnapshot(what, func(*telemetry.Snapshot) bool {
		changes = slices.DeleteFunc(w.events(time.Time{}), func(e telemetry.Event) bool {
			return e.Kind != telemetry.EventLaunch || e.Region != service.Region("local/"+region) || !strings.Contains(e.Reason, "KV memory")
		})
		return len(changes) >= n
	})
	return changes
}

// checkHistory checks that the store has the load that a balancer counted before a time.
func (w *controlWorld) checkHistory(balancer string, before time.Time) {
	w.t.Helper()
	st, minutes := w.copyStore(filepath.Join(w.t.TempDir(), "takeover.backup")), map[int64]bool{}
	if err := st.ReadPoints(w.t.Context(), 0, func(p telemetry.Point) error {
		if p.Balancer == balancer && p.Minute < before.Unix()/60 && p.Requests > 0 {
			minutes[p.Minute] = true
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	if len(minutes) < 2 {
		w.t.Errorf("%d minutes of the load of %s before its end", len(minutes), balancer)
	}
}

// checkState checks the state of a replica in status.
func (w *controlWorld) checkState(id string, want service.ReplicaState) {
	w.t.Helper()
	found := slices.ContainsFunc(w.status().Regions, func(r deploy.RegionStatus) bool {
		return slices.ContainsFunc(r.Replicas, func(r deploy.MachineStatus) bool { return r.ID == id && r.State == want })
	})
	if !found {
		w.t.Errorf("%s is not %s", id, want)
	}
}
