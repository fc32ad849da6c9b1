package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand"
	"skyserve/plan"
	"skyserve/provision"
)

// fakeActuator is the replicas of a service and the balancers that report them. It rejects changes that
// violate the service's bounds.
type fakeActuator struct {
	fail func(format string, args ...any)
	spec *service.Spec

	mu           sync.Mutex
	replicas     []CurrentReplica
	started      int
	kv           map[string]*float64 // by replica; missing = 0
	pending      *int                // of every replica
	held         []telemetry.RegionSnapshot
	stale        bool
	down         map[string]bool      // replicas that are not ready
	unattached   bool                 // no balancer has a replica
	listedAs     service.ReplicaState // the state in which replicas are listed; empty = READY
	unresponsive error
	failed       int                     // the number of balancers without a snapshot
	refuse       error                   // of Apply
	incomplete   error                   // of Apply, after it has made the change
	lacks        provision.ReplicaClass  // the class without capacity
	full         map[service.Region]bool // regions in which no replica can be launched
	half         bool
	orders       []CapacityChange
	points       []telemetry.Point
}

func newFakeActuator(t interface {
	Fatal(args ...any)
	Errorf(format string, args ...any)
}, text string,
) *fakeActuator {
	spec, err := service.Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	y := &fakeActuator{fail: t.Errorf, spec: spec, kv: map[string]*float64{}, down: map[string]bool{}}
	for _, r := range spec.Regions {
		for _, m := range spec.Models {
			for range spec.BoundsFor(m.Name, r.Name).Min {
				y.start(m.Name, r.Name)
			}
		}
	}
	return y
}

func (y *fakeActuator) start(model string, region service.Region) string {
	id := fmt.Sprintf("%s-%s-%d", region.ShortName(), model, y.started)
	y.started++
	y.replicas = append(y.replicas, CurrentReplica{ID: id, Model: model, Region: region, GPU: "L4", Class: provision.ReplicaClass{GPU: "L4", GPUs: 1, Capacity: service.CapacityOnDemand}})
	return id
}

func (y *fakeActuator) Current() (CurrentState, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return CurrentState{Spec: y.spec, Replicas: slices.Clone(y.replicas), Unfinished: y.half}, nil
}

func (y *fakeActuator) Apply(_ context.Context, o CapacityChange, checkLeadership func() error) (launched []string, err error) {
	if err := checkLeadership(); err != nil {
		return nil, err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.refuse != nil {
		return nil, y.refuse
	}
	for _, l := range o.Launch {
		if y.full[l.Region] {
			return nil, fmt.Errorf("no capacity in %s", l.Region)
		}
	}
	y.half = false
	y.orders = append(y.orders, o)
	for _, id := range o.Reclaim {
		y.at(id).Donation = nil
	}
	for _, id := range o.Remove {
		if y.at(id).Donation == nil {
			y.fail("%s serves and is removed", id)
		}
		y.replicas = slices.DeleteFunc(y.replicas, func(r CurrentReplica) bool { return r.ID == id })
	}
	for _, d := range o.Drain {
		donated := d.Donation
		y.at(d.ID).Donation = &donated
	}
	for _, l := range o.Launch {
		for _, r := range y.replicas {
			if r.Model == l.Model && r.Region == l.Region && r.isDonated() {
				y.fail("%s is launched in %s although %s is donated", l.Model, l.Region, r.ID)
			}
		}
		for range l.Count {
			launched = append(launched, y.start(l.Model, l.Region))
			if l.Class != (provision.ReplicaClass{}) {
				y.at(launched[len(launched)-1]).Class = l.Class
			}
		}
	}
	for _, r := range o.Replace {
		if r.Class == y.lacks {
			err = fmt.Errorf("%s stays: no %s", r.ID, r.Class)
			continue
		}
		of := *y.at(r.ID)
		id := y.start(of.Model, of.Region)
		y.at(id).Class = r.Class
		launched = append(launched, id)
		y.replicas = slices.DeleteFunc(y.replicas, func(s CurrentReplica) bool { return s.ID == r.ID }) // its replacement serves
	}
	y.check()
	return launched, errors.Join(err, y.incomplete)
}

func (y *fakeActuator) at(id string) *CurrentReplica {
	i := slices.IndexFunc(y.replicas, func(r CurrentReplica) bool { return r.ID == id })
	if i < 0 {
		y.fail("there is no %s", id)
		return &CurrentReplica{}
	}
	return &y.replicas[i]
}

// check checks the bounds of every model and region.
func (y *fakeActuator) check() {
	for _, r := range y.spec.Regions {
		for _, m := range y.spec.Models {
			b, all, serve := y.spec.BoundsFor(m.Name, r.Name), 0, 0
			for _, rep := range y.replicas {
				if rep.Model == m.Name && rep.Region == r.Name {
					all++
					if rep.Donation == nil {
						serve++
					}
				}
			}
			if serve < b.Min || all > b.Max {
				y.fail("%s in %s: %d of %d serve, want %d to %d", m.Name, r.Name, serve, all, b.Min, b.Max)
			}
		}
	}
}

// observe returns what the balancers report.
func (y *fakeActuator) observe(_ context.Context, since int64, history bool) (*Observed, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.unresponsive != nil {
		return nil, y.unresponsive
	}
	o := &Observed{Spec: y.spec, Failed: y.failed, Snapshot: &telemetry.Snapshot{Regions: slices.Clone(y.held)}}
	age := int64(100)
	if y.stale {
		age = 60_000
	}
	for _, r := range y.replicas {
		if r.Donation != nil {
			continue
		}
		seen := telemetry.ReplicaSnapshot{ID: r.ID, Model: r.Model, GPU: r.GPU, State: cmp.Or(y.listedAs, service.StateReady), AgeMillis: &age, KV: new(float64), Pending: y.pending, Unattached: y.unattached}
		if kv, known := y.kv[r.ID]; known {
			seen.KV = kv
		}
		if y.down[r.ID] {
			seen.State = service.StateNotReady
		}
		o.Snapshot.Regions = append(o.Snapshot.Regions, telemetry.RegionSnapshot{Name: r.Region, Replicas: []telemetry.ReplicaSnapshot{seen}})
	}
	for _, p := range y.points {
		if history && p.Minute >= since {
			o.Points = append(o.Points, p)
		}
	}
	return o, nil
}

// fill sets the KV utilisation of all replicas.
func (y *fakeActuator) fill(share float64) { y.set(func() { y.use(share) }) }

// use is fill under the lock.
func (y *fakeActuator) use(share float64) {
	for _, r := range y.replicas {
		y.kv[r.ID] = &share
	}
}

func (y *fakeActuator) set(f func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	f()
}

// counts returns how many replicas of a model and region serve and are donated.
func (y *fakeActuator) counts(model string, region service.Region) (serve, donated int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, r := range y.replicas {
		switch {
		case r.Model != model || r.Region != region:
		case r.Donation != nil:
			donated++
		default:
			serve++
		}
	}
	return serve, donated
}

// scalerWorld is a scaler with fake dependencies.
type scalerWorld struct {
	*controlLoop
	*testing.T
	actuator *fakeActuator
	store    *fakeState
	lease    *fakeLease
}

// testScaler runs a scaler in a synctest bubble.
func testScaler(t *testing.T, text string, f func(w *scalerWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &scalerWorld{T: t, actuator: newFakeActuator(t, text), store: &fakeState{}, lease: &fakeLease{}}
		w.controlLoop = w.another()
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.runLoop(ctx, w.lease) })
		defer wg.Wait()
		defer end()
		synctest.Wait() // the first iteration observes a service without reports
		f(w)
	})
}

// another returns a second control loop of the same service.
func (w *scalerWorld) another() *controlLoop {
	log := slog.New(slog.DiscardHandler)
	r := &controlLoop{log: log, wake: make(chan struct{}, 1), observe: w.actuator.observe}
	r.scaler = newScaler(service.ControllerConfig{Service: "chat"}, w.store, w.actuator, new(reviewInForce), log)
	return r
}

// pass advances the time at a KV utilisation.
func (w *scalerWorld) pass(d time.Duration, kv float64) {
	for ; d > 0; d -= time.Second {
		w.actuator.fill(kv)
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

// want checks how many replicas of m in us serve and are donated.
func (w *scalerWorld) want(serve, donated int) {
	w.Helper()
	if s, d := w.actuator.counts("m", "local/us"); s != serve || d != donated {
		w.Fatalf("%d serve and %d are donated, want %d and %d", s, d, serve, donated)
	}
}

// published returns the published scaling state.
func (w *scalerWorld) published() (s telemetry.Scaling) {
	w.Helper()
	data, _, err := w.store.Get(w.Context(), "")
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// A replica that serves again, as after 'replica drain --undo', stays listed until its balancer has it. Only one that
// has not been ready yet is STARTING.
func TestReplicaIsListedUntilAttached(t *testing.T) {
	for before, want := range map[service.ReplicaState]service.ReplicaState{
		service.StateDraining: service.StateNotReady, service.StateDonated: service.StateNotReady, service.StateNotReady: service.StateNotReady,
		service.StateStarting: service.StateStarting, service.StateProvisioning: service.StateStarting,
	} {
		t.Run(string(before), func(t *testing.T) {
			testScaler(t, plannedService, func(w *scalerWorld) {
				listed := func() []telemetry.ReplicaSnapshot {
					s := telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{Name: "local/us"}}}
					scaling := w.published()
					s.AddScaling(&scaling)
					return s.Regions[0].Replicas
				}
				w.actuator.set(func() { w.actuator.unattached, w.actuator.listedAs = true, before })
				w.pass(6*time.Second, 0)
				if r := listed(); len(r) != 1 || r[0].ID != "us-m-0" || r[0].State != want || !r[0].Unattached || r[0].Model != "m" || r[0].GPU != "L4" {
					t.Errorf("before: %+v", r)
				}
				w.actuator.set(func() { w.actuator.unattached, w.actuator.listedAs = false, "" })
				w.pass(6*time.Second, 0)
				if r := listed(); len(r) != 0 {
					t.Errorf("after: %+v", r)
				}
			})
		})
	}
}

const reactiveService = `name: chat
models: [{name: m, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}]}]
regions: [{name: local/us, replicas: {min: 1, max: 3}}]
autoscale: {strategy: reactive, donate: true, donate_for: 5m, donate_price: 0.3}
`

func TestReactiveScalesUpDonatesReclaimsRemoves(t *testing.T) {
	testScaler(t, reactiveService, func(w *scalerWorld) {
		w.pass(12*time.Second, 0.8)
		w.want(2, 0)
		w.pass(2*time.Minute, 0.8)
		w.want(3, 0) // and no more than max
		w.pass(10*time.Second, 0.1)
		w.want(2, 1)
		s := w.published()
		if len(s.Donations) != 1 || s.Donations[0].RevenuePerHour != 0.3 || s.Donations[0].Until == nil || s.Strategy != "reactive" {
			t.Fatalf("got %+v", s)
		}
		if e := s.Events[len(s.Events)-1]; e.Kind != telemetry.EventDonate || e.Object != s.Donations[0].Replica || e.Reason != "KV memory 10 % used, below 30 %; replicas before: 3" || e.Actor != telemetry.ActorAutoscaler {
			t.Errorf("got %+v", e)
		}
		w.pass(20*time.Second, 0.8)
		w.want(3, 0)
		w.pass(2*time.Minute, 0.1)
		w.want(1, 2) // and no fewer than min serve
		w.pass(6*time.Minute, 0.5)
		w.want(1, 0)
		s = w.published()
		if len(s.Donations) != 0 {
			t.Errorf("got %+v", s.Donations)
		}
		var did []string
		for _, e := range s.Events {
			did = append(did, string(e.Kind))
		}
		if got := strings.Join(did, " "); got != "launch launch donate reclaim donate donate termination termination" {
			t.Errorf("got %s", got)
		}
	})
}

func TestExcessReplicasStopAfterDraining(t *testing.T) {
	testScaler(t, strings.Replace(reactiveService, "donate: true", "donate: false", 1), func(w *scalerWorld) {
		w.pass(12*time.Second, 0.8)
		w.want(2, 0)
		w.pass(30*time.Second, 0.1)
		w.want(1, 0)
		if e := w.published().Events; len(e) != 3 || e[1].Kind != telemetry.EventDrain || e[2].Kind != telemetry.EventTermination || e[2].Object != e[1].Object {
			t.Errorf("got %+v", e)
		}
	})
}

func TestMissingFiguresCauseNoChange(t *testing.T) {
	for name, spoil := range map[string]func(y *fakeActuator){
		"stale":                 func(y *fakeActuator) { y.stale = true },
		"no balancer responds":  func(y *fakeActuator) { y.unresponsive = errDead },
		"an engine tells none":  func(y *fakeActuator) { y.kv[y.replicas[0].ID] = nil },
		"nobody is ready":       func(y *fakeActuator) { y.down[y.replicas[0].ID], y.down[y.replicas[1].ID] = true, true },
		"one of two is unknown": func(y *fakeActuator) { y.kv[y.replicas[1].ID] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			testScaler(t, strings.Replace(reactiveService, "min: 1", "min: 2", 1), func(w *scalerWorld) {
				for _, share := range []float64{0.95, 0.05} {
					for range 60 {
						w.actuator.set(func() { // under one lock: an iteration may run between two steps
							w.actuator.use(share)
							spoil(w.actuator)
						})
						time.Sleep(time.Second)
					}
				}
				synctest.Wait()
				if n := len(w.actuator.orders); n > 0 {
					t.Errorf("%d orders: %+v", n, w.actuator.orders)
				}
			})
		})
	}
}

// The strategy auto adds replicas where interactive requests wait for their first token, at the
// balancers or in the engines. Deferred requests, those of another model or region, and stale or
// missing figures have no effect.
func TestAutoScalesUpForWaitingInteractive(t *testing.T) {
	reported := func(region service.Region, age int64, models ...telemetry.ModelSnapshot) telemetry.RegionSnapshot {
		return telemetry.RegionSnapshot{Name: region, Balancers: []telemetry.BalancerSnapshot{{State: "READY", AgeMillis: age}}, Models: models}
	}
	full := telemetry.ModelSnapshot{Model: "m", Queued: 9}
	many := 9
	for name, c := range map[string]struct {
		held    telemetry.RegionSnapshot
		pending *int
		want    int
	}{
		"held by the balancers":  {reported("local/us", 200, full), nil, 2},
		"pending in the engines": {reported("local/us", 200, telemetry.ModelSnapshot{Model: "m"}), &many, 2},
		"deferred":               {reported("local/us", 200, telemetry.ModelSnapshot{Model: "m", Deferred: 99}), nil, 1},
		"another model":          {reported("local/us", 200, telemetry.ModelSnapshot{Model: "m"}, telemetry.ModelSnapshot{Model: "n", Queued: 99}), nil, 1},
		"another region":         {reported("local/eu", 200, full), nil, 1},
		"old":                    {reported("local/us", 9000, full), nil, 1},
		"not reported":           {reported("local/us", 200), &many, 1},
		"no balancer is reached": {telemetry.RegionSnapshot{Name: "local/us", Models: []telemetry.ModelSnapshot{full}}, &many, 1},
	} {
		t.Run(name, func(t *testing.T) {
			testScaler(t, strings.Replace(reactiveService, "reactive", "auto", 1), func(w *scalerWorld) {
				w.actuator.set(func() { w.actuator.held, w.actuator.pending = []telemetry.RegionSnapshot{c.held}, c.pending })
				w.pass(6*time.Second, 0.5)
				w.want(c.want, 0)
			})
		})
	}
}

// The first-token counts of a region's balancers reach the strategy, unless they are stale.
func TestStrategyReceivesFirstTokenCounts(t *testing.T) {
	y := newFakeActuator(t, reactiveService)
	current, _ := y.Current()
	for _, c := range []struct {
		age  int64
		want *plan.FirstTokens
	}{{100, &plan.FirstTokens{Total: 40, Late: 3}}, {9000, nil}} {
		y.held = []telemetry.RegionSnapshot{{
			Name: "local/us", Balancers: []telemetry.BalancerSnapshot{{State: "READY", AgeMillis: c.age}},
			Models: []telemetry.ModelSnapshot{{Model: "m", FirstTokens: 40, SLOMisses: 3}},
		}}
		seen, err := y.observe(t.Context(), 0, false)
		if err != nil {
			t.Fatal(err)
		}
		s := &scalingInputs{now: time.Now(), current: current, snapshot: seen.Snapshot}
		if got := s.strategyInput(s.groups()).Endpoints[0].FastFirstTokens; !reflect.DeepEqual(got, c.want) {
			t.Errorf("figures of %d ms ago: got %+v, want %+v", c.age, got, c.want)
		}
	}
}

// Another objective in service.yaml restarts the strategy; an unchanged one keeps its state.
func TestChangedObjectiveRestartsStrategy(t *testing.T) {
	w := &scalerWorld{actuator: newFakeActuator(t, strings.Replace(reactiveService, "reactive", "auto", 1)), store: &fakeState{}}
	s := w.another().scaler
	by := w.actuator.spec.Autoscale
	if err := s.selectStrategy(by); err != nil {
		t.Fatal(err)
	}
	first := s.strategy
	by.DonatePrice = 9
	if err := s.selectStrategy(by); err != nil || s.strategy != first {
		t.Errorf("the strategy was recreated: %v", err)
	}
	by.TTFTMissTarget = 0.01
	if err := s.selectStrategy(by); err != nil || s.strategy == first || s.autoscale.TTFTMissTarget != 0.01 {
		t.Errorf("another objective is not applied: %v", err)
	}
}

func TestManualOnlyRemovesExpiredDonations(t *testing.T) {
	testScaler(t, strings.Replace(reactiveService, "reactive", "manual", 1), func(w *scalerWorld) {
		w.actuator.set(func() {
			id := w.actuator.start("m", "local/us")
			w.actuator.at(id).Donation = &service.Donation{Since: time.Now(), Until: time.Now().Add(time.Minute)}
			w.actuator.half = true
		})
		w.pass(50*time.Second, 0.9)
		w.want(1, 1)
		w.pass(20*time.Second, 0.9)
		w.want(1, 0)
		if n := len(w.actuator.orders); n != 1 {
			t.Errorf("%d orders", n)
		}
	})
}

func TestLostLeaseStopsChanges(t *testing.T) {
	testScaler(t, reactiveService, func(w *scalerWorld) {
		w.lease.lose()
		w.pass(time.Minute, 0.9)
		if len(w.actuator.orders) > 0 {
			t.Errorf("got %+v", w.actuator.orders)
		}
	})
}

// A new leader respects the cooldown of the previous leader's changes and keeps its events.
func TestNewLeaderKeepsEventsAndCooldown(t *testing.T) {
	testScaler(t, reactiveService, func(w *scalerWorld) {
		w.pass(8*time.Second, 0.8)
		w.want(2, 0)
		at := w.published().Events[0].At
		w.lease.lose()
		ctx, end := context.WithCancel(w.Context())
		defer end()
		next := &fakeLease{}
		var wg sync.WaitGroup
		second := w.another()
		wg.Go(func() { second.runLoop(ctx, next) })
		w.pass(cooldown-time.Since(at)-time.Second, 0.8)
		w.want(2, 0)
		w.pass(10*time.Second, 0.8)
		w.want(3, 0)
		if e := w.published().Events; len(e) != 2 || !e[0].At.Equal(at) {
			t.Errorf("got %+v", e)
		}
		end()
		wg.Wait()
	})
}

func TestFailedChangeIsRetriedWithOneEvent(t *testing.T) {
	testScaler(t, reactiveService, func(w *scalerWorld) {
		w.actuator.set(func() { w.actuator.refuse = errors.New("port 1 is taken") })
		w.pass(2*time.Minute, 0.8)
		e := w.published().Events
		if len(e) != 1 || e[0].Kind != telemetry.EventFailure || !strings.Contains(e[0].Reason, "launching replicas failed (requested because: KV memory 80 % used, above 70 %): port 1 is taken") {
			t.Fatalf("got %+v", e)
		}
		w.actuator.set(func() { w.actuator.refuse = ErrBusy })
		w.pass(time.Minute, 0.8)
		w.actuator.set(func() { w.actuator.refuse = nil })
		w.pass(20*time.Second, 0.8)
		if s, _ := w.actuator.counts("m", "local/us"); s < 2 {
			t.Errorf("it was not retried: %d serve", s)
		}
		if e := w.published().Events; e[1].Kind != telemetry.EventLaunch {
			t.Errorf("ErrBusy must not create an event: got %+v", e)
		}
	})
}

// What a change has done before it failed is recorded, and balancers receive it at once.
func TestIncompleteChangeIsRecorded(t *testing.T) {
	for name, tt := range map[string]struct {
		change  scalingChange
		events  []telemetry.EventKind
		serving bool // the serving replicas changed
	}{
		"launch": {
			scalingChange{
				capacity: CapacityChange{Launch: []ReplicaLaunch{{Model: "m", Region: "local/us", Count: 1}}},
				actions:  []scalingAction{{kind: telemetry.EventLaunch, model: "m", region: "local/us"}},
			},
			[]telemetry.EventKind{telemetry.EventLaunch, telemetry.EventFailure},
			false,
		},
		"drain": {
			scalingChange{capacity: CapacityChange{Drain: []ReplicaDrain{{ID: "us-m-0"}}}, actions: []scalingAction{{kind: telemetry.EventDonate, model: "m", region: "local/us", replicas: []string{"us-m-0"}}}},
			[]telemetry.EventKind{telemetry.EventFailure},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			actuator := newFakeActuator(t, reactiveService)
			actuator.start("m", "local/us")
			actuator.incomplete = errors.New("the disk is full")
			s := newScaler(service.ControllerConfig{Service: "chat"}, &fakeState{}, actuator, new(reviewInForce), slog.New(slog.DiscardHandler))
			if err := s.applyChanges(t.Context(), &fakeLease{}, []scalingChange{tt.change}); !errors.Is(err, actuator.incomplete) {
				t.Errorf("got %v", err)
			}
			var kinds []telemetry.EventKind
			for _, e := range s.events {
				kinds = append(kinds, e.Kind)
			}
			if !slices.Equal(kinds, tt.events) || s.servingChanged != tt.serving {
				t.Errorf("got the events %v, want %v; the serving replicas changed: %t, want %t", kinds, tt.events, s.servingChanged, tt.serving)
			}
			if launched := s.events[0]; tt.events[0] == telemetry.EventLaunch && launched.Object != "us-m-2" {
				t.Errorf("the launched replica is not named: %+v", launched)
			}
		})
	}
}

func TestUnfinishedChangeIsCompleted(t *testing.T) {
	testScaler(t, reactiveService, func(w *scalerWorld) {
		w.actuator.set(func() { w.actuator.half = true })
		w.pass(10*time.Second, 0.5)
		if len(w.actuator.orders) != 1 || len(w.actuator.orders[0].Launch) != 0 {
			t.Errorf("got %+v", w.actuator.orders)
		}
	})
}

const twoModels = `name: chat
models:
  - {name: m, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}], regions: {local/us: {min: 1, max: 3}}}
  - {name: n, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}], regions: {local/us: {min: 1, max: 3}}}
  - {name: h, engine: {kind: sim}, gpus: [{type: H100, tps: 9000}], regions: {local/us: {min: 1, max: 3}}}
regions: [{name: local/us, replicas: {min: 1, max: 3}}]
autoscale: {strategy: reactive, donate: true}
`

// A donated replica of another model on the same GPU is redeployed; otherwise a new replica is
// launched. While a balancer does not respond, the donated replica may have requests, and is not redeployed.
func TestRedeployBeforeLaunch(t *testing.T) {
	for name, want := range map[string]telemetry.EventKind{"n": telemetry.EventRedeploy, "h": telemetry.EventLaunch, "n, a balancer does not respond": telemetry.EventLaunch} {
		t.Run(name, func(t *testing.T) {
			testScaler(t, twoModels, func(w *scalerWorld) {
				full, calm, id := 0.9, 0.5, ""
				donated, _, silent := strings.Cut(name, ",")
				w.actuator.set(func() {
					if silent {
						w.actuator.failed = 1
					}
					id = w.actuator.start(donated, "local/us")
					w.actuator.at(id).Donation = &service.Donation{Since: time.Now()}
					for _, r := range w.actuator.replicas {
						w.actuator.kv[r.ID] = &calm
					}
					w.actuator.kv[w.actuator.replicas[0].ID] = &full // the replica of m
				})
				time.Sleep(7 * time.Second)
				synctest.Wait()
				w.want(2, 0)
				e := w.published().Events
				if len(e) != 1 || e[0].Kind != want || !strings.HasPrefix(e[0].Object, "us-m-") {
					t.Fatalf("got %+v", e)
				}
				_, left := w.actuator.counts(donated, "local/us")
				if redeployed := strings.Contains(e[0].Reason, "replaces "+id); redeployed != (want == telemetry.EventRedeploy) || redeployed != (left == 0) {
					t.Errorf("got %q, %d donated", e[0].Reason, left)
				}
			})
		})
	}
}

// For any observation and strategy: the bounds hold, donated replicas are reclaimed before new ones
// are launched, and no serving replica is stopped (see fakeActuator).
func TestScalingInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		strategy := rapid.SampledFrom([]string{"reactive", "lt-i", "lt-u", "lt-ua", "predictive", "auto"}).Draw(t, "strategy")
		donate := rapid.Bool().Draw(t, "donate")
		y := newFakeActuator(t, strings.NewReplacer("reactive", strategy, "donate: true", fmt.Sprintf("donate: %v", donate)).Replace(twoModels))
		s := (&scalerWorld{actuator: y, store: &fakeState{}}).another().scaler
		s.termStart = time.Unix(1_800_000_000, 0)
		if err := s.selectStrategy(y.spec.Autoscale); err != nil {
			t.Fatal(err)
		}
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			now := s.termStart.Add(time.Duration(step) * 20 * time.Second)
			for _, r := range y.replicas {
				share := rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.8, 1}).Draw(t, "kv")
				if y.kv[r.ID] = &share; rapid.IntRange(0, 9).Draw(t, "unknown") == 0 {
					y.kv[r.ID] = nil
				}
				y.down[r.ID] = rapid.IntRange(0, 9).Draw(t, "down") == 0
			}
			review := telemetry.Review{From: s.termStart, Until: s.termStart.Add(time.Hour)}
			loads := map[modelRegion]float64{}
			for _, m := range y.spec.Models {
				review.Targets = append(review.Targets, telemetry.PlannedCapacity{
					Model: m.Name, Region: "local/us", Count: rapid.IntRange(0, 5).Draw(t, "target"), ReplicaTPS: 1000, PeakTPS: 1500,
				})
				loads[modelRegion{m.Name, "local/us"}] = rapid.Float64Range(0, 9000).Draw(t, "load")
			}
			current, _ := y.Current()
			seen, _ := y.observe(context.Background(), 0, false)
			at := &scalingInputs{now: now, current: current, snapshot: seen.Snapshot, loads: loads, lastMinute: loads, targets: hourlyTargets(&review, now, s.termStart)}
			if err := s.applyChanges(context.Background(), &fakeLease{}, s.decideChanges(at)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The load is known as soon as one whole minute is: a new service is not scaled blindly for five minutes. The minute in
// which its balancers started is not whole.
func TestObservedLoadsOmitIncompleteMinutes(t *testing.T) {
	const minute = 30_000_000
	at := time.Unix(minute*60, 0).Add(20 * time.Second)
	point := func(minutesAgo int64, tier service.Tier, prompt, cached int64) telemetry.Point {
		return telemetry.Point{Minute: minute - minutesAgo, Balancer: "lb-us-0", Region: "local/us", Model: "m", Tier: tier, PromptTokens: prompt, CachedTokens: cached}
	}
	minutes := func(ago ...int64) (all []telemetry.Point) {
		for _, m := range ago {
			all = append(all, point(m, service.TierFast, 60_000, 12_000), point(m, service.TierNormal, 12_000, 0), point(m, service.TierDeferred, 900_000, 0))
		}
		return all
	}
	known := map[modelRegion]float64{{"m", "local/us"}: 1000}
	for _, c := range []struct {
		name   string
		from   int64 // minutes ago
		points []telemetry.Point
		want   map[modelRegion]float64
	}{
		{"five minutes", 5, minutes(5, 4, 3, 2, 1), known},
		{"the service started two minutes ago", 5, append(minutes(1), point(2, service.TierFast, 600, 0)), known},
		{"the service started in the last minute", 5, minutes(1), map[modelRegion]float64{}},
		{"the same, with the history of a plan", 20_160, minutes(1), map[modelRegion]float64{}},
		{"since a gap", 5, append(minutes(2, 1), point(4, service.TierFast, 1, 0)), known},
		{"a minute earlier than read", 5, append(minutes(5, 4, 3, 2, 1), point(6, service.TierFast, 1, 0)), known},
		{"the running minute", 5, append(minutes(5, 4, 3, 2, 1), point(0, service.TierFast, 1, 0)), known},
		{"the last is missing", 5, minutes(5, 4, 3, 2), map[modelRegion]float64{}},
		{"nothing", 5, nil, map[modelRegion]float64{}},
	} {
		h, err := demand.Traffic(c.points)
		if err != nil {
			t.Fatal(err)
		}
		got := observedLoads(h, minute-c.from, at, plan.ObservedMinutes)
		if len(got) != len(c.want) || got[modelRegion{"m", "local/us"}] != c.want[modelRegion{"m", "local/us"}] {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// A machine of a static region can be neither started nor stopped: an excess one is donated
// indefinitely, regardless of the configuration, and reclaimed.
func TestStaticMachineIsDonatedNotRemoved(t *testing.T) {
	const text = `name: chat
models: [{name: m, engine: {kind: openai}}]
regions: [{name: static/paris, endpoints: ["http://10.0.0.7:8000", "http://10.0.0.8:8000"], replicas: {min: 1}}]
autoscale: {strategy: reactive, donate: false}
`
	testScaler(t, text, func(w *scalerWorld) {
		w.actuator.set(func() { w.actuator.start("m", "static/paris") })
		w.pass(2*time.Hour, 0.1)
		serve, donated := w.actuator.counts("m", "static/paris")
		if serve != 1 || donated != 1 {
			t.Fatalf("%d serve, %d are donated", serve, donated)
		}
		if d := w.published().Donations; len(d) != 1 || d[0].Until != nil {
			t.Errorf("got %+v", d)
		}
		w.pass(20*time.Second, 0.9)
		if serve, donated := w.actuator.counts("m", "static/paris"); serve != 2 || donated != 0 {
			t.Errorf("%d serve, %d are donated", serve, donated)
		}
		w.pass(time.Minute, 0.9)
		if n := len(w.actuator.orders); n != 2 {
			t.Errorf("%d orders: %+v", n, w.actuator.orders)
		}
	})
}
