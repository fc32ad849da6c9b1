package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

const toZero = `name: chat
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}]}]
regions: [{name: local/us, replicas: {min: 0, max: 2}}, {name: local/eu, replicas: {min: 0, max: 1}}]
autoscale: {strategy: reactive, scale_to_zero_after: 10m}
`

// zeroWorld is a scaler of a model that scales to zero, and the requests of that model.
type zeroWorld struct {
	*scalerWorld
	waiting map[service.Region]int
	usedAt  time.Time
}

// testZero runs a scaler in a synctest bubble, without requests so far.
func testZero(t *testing.T, text string, f func(w *zeroWorld)) {
	t.Helper()
	testScaler(t, text, func(w *scalerWorld) {
		f(&zeroWorld{scalerWorld: w, waiting: map[service.Region]int{}, usedAt: time.Now()})
	})
}

// wait advances the time. kv is the utilisation of the replicas.
func (w *zeroWorld) wait(d time.Duration, kv float64) {
	for ; d > 0; d -= time.Second {
		w.actuator.set(w.report)
		w.pass(time.Second, kv)
	}
}

// report makes the balancers report the requests. It is called under the actuator's lock.
func (w *zeroWorld) report() {
	w.actuator.held = nil
	idle := time.Since(w.usedAt).Milliseconds()
	for _, r := range w.actuator.spec.Regions {
		m := telemetry.ModelSnapshot{Model: "m", Queued: w.waiting[r.Name], IdleMillis: &idle}
		if m.Queued > 0 {
			m.IdleMillis, w.usedAt = new(int64), time.Now()
		}
		w.actuator.held = append(w.actuator.held, telemetry.RegionSnapshot{
			Name: r.Name, Balancers: []telemetry.BalancerSnapshot{{State: "READY"}}, Models: []telemetry.ModelSnapshot{m},
		})
	}
}

// launches returns the regions of all launches, in order.
func (w *zeroWorld) launches() string {
	w.actuator.mu.Lock()
	defer w.actuator.mu.Unlock()
	var regions []string
	for _, o := range w.actuator.orders {
		for _, l := range o.Launch {
			regions = append(regions, fmt.Sprintf("%s:%d", l.Region.ShortName(), l.Count))
		}
	}
	return strings.Join(regions, " ")
}

func (w *zeroWorld) wantServing(us, eu int) {
	w.Helper()
	u, _ := w.actuator.counts("m", "local/us")
	e, _ := w.actuator.counts("m", "local/eu")
	if u != us || e != eu {
		w.Fatalf("%d serve in us and %d in eu, want %d and %d", u, e, us, eu)
	}
}

// Waiting requests start one replica, in the region where most of them wait, and no second one while
// it starts.
func TestWaitingRequestsStartOneReplica(t *testing.T) {
	for name, c := range map[string]struct {
		us, eu int
		want   string
	}{
		"most wait in eu": {2, 3, "eu:1"},
		"as many in both": {2, 2, "us:1"},
		"none":            {0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			testZero(t, toZero, func(w *zeroWorld) {
				w.waiting["local/us"], w.waiting["local/eu"] = c.us, c.eu
				for range 60 {
					w.wait(time.Second, 0)
					w.actuator.set(func() {
						for _, r := range w.actuator.replicas {
							w.actuator.down[r.ID] = true // it takes longer to start
						}
					})
				}
				if got := w.launches(); got != c.want {
					t.Errorf("launches %q, want %q", got, c.want)
				}
				if c.want == "" {
					return
				}
				e := w.published().Events
				if len(e) != 1 || e[0].Kind != telemetry.EventScaleFromZero || !strings.HasPrefix(e[0].Reason, "no replica, ") || !strings.HasSuffix(e[0].Reason, "; replicas before: 0") {
					t.Errorf("events %+v", e)
				}
			})
		})
	}
}

// A deferred request starts a replica too.
func TestDeferredRequestStartsReplica(t *testing.T) {
	testZero(t, toZero, func(w *zeroWorld) {
		w.actuator.set(func() {
			w.report()
			w.actuator.held[1].Models[0].Deferred = 1
		})
		w.pass(6*time.Second, 0)
		if got := w.launches(); got != "eu:1" {
			t.Errorf("launches %q", got)
		}
	})
}

// Requests that are cancelled before the next iteration start nothing.
func TestCancelledRequestsStartNothing(t *testing.T) {
	testZero(t, toZero, func(w *zeroWorld) {
		w.wait(6*time.Second, 0) // iterations run every 5 s
		w.waiting["local/us"] = 4
		w.wait(2*time.Second, 0)
		w.waiting["local/us"] = 0
		w.wait(time.Minute, 0)
		if got := w.launches(); got != "" {
			t.Errorf("launches %q", got)
		}
	})
}

// A region without capacity is avoided for a minute.
func TestStartFallsBackToAnotherRegion(t *testing.T) {
	testZero(t, toZero, func(w *zeroWorld) {
		w.actuator.set(func() { w.actuator.full = map[service.Region]bool{"local/us": true} })
		w.waiting["local/us"] = 1
		w.wait(12*time.Second, 0)
		w.wantServing(0, 1)
		var did []string
		for _, e := range w.published().Events {
			did = append(did, fmt.Sprint(e.Kind, " ", e.Region))
		}
		if want := []string{"failure local/us", "scale-from-zero local/eu"}; !slices.Equal(did, want) {
			t.Errorf("events %q, want %q", did, want)
		}
	})
}

// The strategy alone would remove an unused replica within seconds. The last one stays until the model
// has had no request for scale_to_zero_after; traffic with shorter pauses keeps it.
func TestLastReplicaStaysUntilIdle(t *testing.T) {
	testZero(t, toZero, func(w *zeroWorld) {
		w.waiting["local/eu"] = 1
		w.wait(6*time.Second, 0)
		w.waiting["local/eu"] = 0
		for range 4 {
			w.wait(9*time.Minute, 0)
			w.wantServing(0, 1)
			w.usedAt = time.Now()
		}
		w.wait(10*time.Minute-10*time.Second, 0)
		w.wantServing(0, 1)
		w.wait(20*time.Second, 0)
		w.wantServing(0, 0)
		e := w.published().Events
		if last := e[1]; len(e) != 3 || last.Kind != telemetry.EventScaleToZero || e[2].Kind != telemetry.EventTermination || !strings.HasPrefix(last.Reason, "scaled to zero: no requests for 10m") {
			t.Errorf("events %+v", e)
		}
		w.waiting["local/us"] = 1
		w.wait(6*time.Second, 0)
		w.wantServing(1, 0)
	})
}

// The replicas of all regions are removed together, also one that never became ready.
func TestIdleModelLosesAllReplicas(t *testing.T) {
	testZero(t, toZero, func(w *zeroWorld) {
		w.actuator.set(func() {
			w.actuator.start("m", "local/us")
			w.actuator.down[w.actuator.start("m", "local/eu")] = true
		})
		w.wait(10*time.Minute+20*time.Second, 0.5)
		w.wantServing(0, 0)
		if n := len(w.actuator.replicas); n != 0 {
			t.Errorf("%d replicas remain", n)
		}
	})
}

// While something is unknown, an idle model keeps its replicas.
func TestUnknownUseKeepsReplicas(t *testing.T) {
	for name, spoil := range map[string]func(w *zeroWorld){
		"a region does not report the model": func(w *zeroWorld) { w.actuator.held[1].Models = nil },
		"an old report":                      func(w *zeroWorld) { w.actuator.held[1].Balancers[0].AgeMillis = 9000 },
		"no idle time":                       func(w *zeroWorld) { w.actuator.held[0].Models[0].IdleMillis = nil },
		"a request in another region":        func(w *zeroWorld) { w.actuator.held[1].Models[0].IdleMillis = new(int64) },
		"no balancer responds":               func(w *zeroWorld) { w.actuator.unresponsive = errors.New("down") },
	} {
		t.Run(name, func(t *testing.T) {
			testZero(t, toZero, func(w *zeroWorld) {
				w.actuator.set(func() { w.actuator.start("m", "local/us") })
				for range 15 * 60 {
					w.actuator.set(func() {
						w.report()
						spoil(w)
					})
					w.pass(time.Second, 0.5)
				}
				w.wantServing(1, 0)
			})
		})
	}
}

// A donated replica of an idle model is reclaimed instead of launching another one, in whichever
// region it is.
func TestDonatedReplicaIsReclaimedForDemand(t *testing.T) {
	testZero(t, strings.Replace(toZero, "reactive,", "reactive, donate: true, donate_for: 1h,", 1), func(w *zeroWorld) {
		w.waiting["local/eu"] = 1
		w.wait(6*time.Second, 0)
		w.waiting["local/eu"] = 0
		w.wait(11*time.Minute, 0)
		if _, donated := w.actuator.counts("m", "local/eu"); donated != 1 {
			t.Fatalf("%d are donated", donated)
		}
		w.waiting["local/us"] = 5
		w.wait(6*time.Second, 0)
		w.wantServing(0, 1)
		if got := w.launches(); got != "eu:1" {
			t.Errorf("launches %q", got)
		}
	})
}

// A new controller does not start a second replica, even if the first is not listed yet.
func TestNewControllerStartsNoSecondReplica(t *testing.T) {
	for _, listed := range []bool{true, false} {
		t.Run(fmt.Sprintf("listed %v", listed), func(t *testing.T) {
			testZero(t, toZero, func(w *zeroWorld) {
				w.waiting["local/us"] = 2
				w.wait(6*time.Second, 0)
				if got := w.launches(); got != "us:1" {
					t.Fatalf("launches %q", got)
				}
				if !listed {
					w.actuator.set(func() { w.actuator.replicas = nil })
				}
				ctx, end := context.WithCancel(w.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer end()
				wg.Go(func() { w.another().runLoop(ctx, w.lease) })
				w.wait(4*time.Second, 0)
				synctest.Wait()
				if got := w.launches(); got != "us:1" {
					t.Errorf("launches %q", got)
				}
			})
		})
	}
}

// With the strategy manual, only the operator changes the number of replicas.
func TestManualStartsNothing(t *testing.T) {
	testZero(t, strings.Replace(toZero, "reactive", "manual", 1), func(w *zeroWorld) {
		w.waiting["local/us"] = 2
		w.wait(time.Minute, 0)
		w.waiting["local/us"] = 0
		w.actuator.set(func() { w.actuator.start("m", "local/us") })
		w.wait(15*time.Minute, 0)
		w.wantServing(1, 0)
		if n := len(w.actuator.orders); n != 0 {
			t.Errorf("%d changes", n)
		}
	})
}

// A plan with a relevant load keeps the replica of an idle model and starts one, if the strategy
// follows the plan.
func TestPlannedLoadKeepsAndStartsReplica(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		strategy string
		target   plan.HourlyTarget
		kept     bool
	}{
		"planned":               {"lt-i", plan.HourlyTarget{Count: 1, PeakTPS: 50, ReplicaTPS: 1000}, true},
		"hardly any load":       {"lt-i", plan.HourlyTarget{Count: 1, PeakTPS: 49, ReplicaTPS: 1000}, false},
		"none planned":          {"lt-i", plan.HourlyTarget{}, false},
		"throughput is unknown": {"lt-i", plan.HourlyTarget{Count: 1}, true},
		"reactive ignores it":   {"reactive", plan.HourlyTarget{Count: 1, PeakTPS: 900, ReplicaTPS: 1000}, false},
		"auto":                  {"auto", plan.HourlyTarget{Count: 1, PeakTPS: 900, ReplicaTPS: 1000}, true},
	} {
		t.Run(name, func(t *testing.T) {
			y := newFakeActuator(t, strings.Replace(toZero, "reactive", c.strategy, 1))
			w := &zeroWorld{scalerWorld: &scalerWorld{T: t, actuator: y, store: &fakeState{}}, waiting: map[service.Region]int{}, usedAt: time.Now().Add(-time.Hour)}
			s := w.another().scaler
			if err := s.selectStrategy(y.spec.Autoscale); err != nil {
				t.Fatal(err)
			}
			c.target.Until = time.Hour
			decide := func(failedBalancers int) []scalingChange {
				w.report()
				current, _ := y.Current()
				seen, _ := y.observe(t.Context(), 0, false)
				return s.decideChanges(&scalingInputs{now: now, current: current, snapshot: seen.Snapshot, failedBalancers: failedBalancers, targets: map[modelRegion]*plan.HourlyTarget{
					{"m", "local/us"}: &c.target, {"m", "local/eu"}: {Until: time.Hour},
				}})
			}
			if launched, want := len(decide(0)) == 1, c.kept && c.strategy == "lt-i"; launched != want {
				t.Errorf("without replicas: launched %v, want %v", launched, want)
			}
			y.start("m", "local/us")
			if changes := decide(0); (len(changes) == 0) != c.kept {
				t.Errorf("with a replica: %+v, want it kept: %v", changes, c.kept)
			}
			if changes := decide(1); len(changes) != 0 {
				t.Errorf("with a balancer that does not respond: %+v", changes)
			}
		})
	}
}

// The iteration after a start follows soon, because it delivers the configuration of the replica.
func TestStartIsDeliveredSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * time.Second) // no minute is stored within the next loopInterval
		y := newFakeActuator(t, toZero)
		w := &zeroWorld{scalerWorld: &scalerWorld{T: t, actuator: y, store: &fakeState{}}, waiting: map[service.Region]int{"local/us": 1}, usedAt: time.Now()}
		w.report()
		loop := w.another()
		loop.scaler.startTerm()
		for i, want := range []time.Duration{busyInterval, loopInterval} {
			if got := loop.runOnce(t.Context(), &fakeLease{}); got != want {
				t.Errorf("iteration %d: next after %v, want %v", i, got, want)
			}
		}
	})
}
