package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envBalancers); dir != "" {
		if err := serveBalancers(dir); err != nil {
			panic(err)
		}
		return
	}
	testkit.CollectRarely()
	goleak.VerifyTestMain(m)
}

// fakeBalancer is a balancer that can fail.
type fakeBalancer struct {
	mu    sync.Mutex
	dead  bool
	has   map[string]uint64 // epoch by replica
	stuck bool              // RemoveWorker fails
	gone  map[string]uint64 // epoch of replicas that it had
	busy  map[string]int    // requests outstanding at a replica
	drain map[string]bool
	url   map[string]string // of each replica, as attached
	// configured are the replicas of its configuration, while no controller has attached them.
	configured map[string]bool
}

func (b *fakeBalancer) set(dead bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = dead
}

func (b *fakeBalancer) replicas() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return ids(b.has)
}

func ids(has map[string]uint64) []string {
	list := []string{}
	for id := range has {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

var errDead = errors.New("connection refused")

func (b *fakeBalancer) Healthy(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return errDead
	}
	return nil
}

func (b *fakeBalancer) Workers(context.Context) ([]telemetry.Worker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return nil, errDead
	}
	var workers []telemetry.Worker
	for _, id := range ids(b.has) {
		w := telemetry.Worker{ReplicaConfig: service.ReplicaConfig{ID: id, URL: b.url[id], Epoch: b.has[id]}, State: service.StateReady, Outstanding: b.busy[id]}
		if b.drain[id] {
			w.State = service.StateDraining
		}
		if b.configured[id] && b.has[id] == 0 {
			w.Origin = "config"
		}
		workers = append(workers, w)
	}
	return workers, nil
}

func (b *fakeBalancer) AddWorker(_ context.Context, r service.ReplicaConfig) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, had := b.has[r.ID]
	switch {
	case b.dead:
		return false, errDead
	case had && old > r.Epoch || !had && b.gone[r.ID] > r.Epoch:
		return false, telemetry.ErrConflict
	}
	if b.url == nil {
		b.url = map[string]string{}
	}
	b.has[r.ID], b.url[r.ID] = r.Epoch, r.URL
	return !had, nil
}

func (b *fakeBalancer) RemoveWorker(_ context.Context, id string, epoch uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.dead || b.stuck:
		return errDead
	case b.has[id] > epoch:
		return telemetry.ErrConflict
	}
	delete(b.has, id)
	return nil
}

func (b *fakeBalancer) DrainWorker(_ context.Context, id, _ string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, has := b.has[id]; !has {
		return telemetry.ErrNotFound
	}
	if b.drain == nil {
		b.drain = map[string]bool{}
	}
	b.drain[id] = true
	return nil
}

// fakeState is a store with one key, and one for alerts.
type fakeState struct {
	mu       sync.Mutex
	data     []byte
	revision uint64
	down     bool

	alerts         []byte
	alertsRevision uint64
}

// slot returns the fields of a key; the lock must be held.
func (s *fakeState) slot(key string) (*[]byte, *uint64) {
	if strings.HasPrefix(key, telemetry.AlertsPrefix) {
		return &s.alerts, &s.alertsRevision
	}
	return &s.data, &s.revision
}

func (s *fakeState) Get(_ context.Context, key string) ([]byte, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, revision := s.slot(key)
	switch {
	case s.down:
		return nil, 0, store.ErrUnavailable
	case *data == nil:
		return nil, 0, store.ErrNotFound
	}
	return *data, *revision, nil
}

func (s *fakeState) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	return s.CompareAndSwap(ctx, key, value, 0)
}

func (s *fakeState) CompareAndSwap(_ context.Context, key string, value []byte, revision uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, last := s.slot(key)
	have := *last
	if *data == nil {
		have = 0
	}
	switch {
	case s.down:
		return 0, store.ErrUnavailable
	case have != revision:
		return 0, store.ErrConflict
	}
	*data, *last = value, *last+1
	return *last, nil
}

// fakeLease is valid until it is lost.
type fakeLease struct {
	mu       sync.Mutex
	token    uint64 // 0 = 7
	lost     bool
	renewals int
	released bool
}

func (l *fakeLease) Token() uint64 { return cmp.Or(l.token, 7) }

func (l *fakeLease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lost
}

func (l *fakeLease) Expires() time.Time {
	if !l.Valid() {
		return time.Time{}
	}
	return time.Now().Add(leaseTTL)
}

func (l *fakeLease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

func (l *fakeLease) Renew(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewals++
	return nil
}

func (l *fakeLease) Release(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	return nil
}

// world is a controller with fake dependencies.
type world struct {
	*Controller
	lb    map[string]*fakeBalancer
	state *fakeState
	lease *fakeLease
}

// newWorld returns a service with three regions, us near eu and asia far, with two replicas in us
// and one in each other region. Balancers start with their own replicas.
func newWorld() *world {
	config := service.ControllerConfig{
		Service: "chat", StoreListen: "127.0.0.1:1",
		RTT: map[string]time.Duration{"us-eu": 10, "eu-asia": 50, "us-asia": 100},
	}
	w := &world{lb: map[string]*fakeBalancer{}, state: &fakeState{}, lease: &fakeLease{}}
	for place, replicas := range map[string][]string{"us": {"us-0", "us-1"}, "eu": {"eu-0"}, "asia": {"asia-0"}} {
		b := service.ControlledBalancer{ID: "lb-" + place + "-0", Region: service.Region("local/" + place), Admin: "lb-" + place + "-0"}
		config.Balancers = append(config.Balancers, b)
		w.lb[b.ID] = &fakeBalancer{has: map[string]uint64{}}
		for _, id := range replicas {
			config.Replicas = append(config.Replicas, service.ControlledReplica{ReplicaConfig: service.ReplicaConfig{ID: id, Region: b.Region}, Primary: b.ID})
			w.lb[b.ID].has[id] = 0
		}
	}
	acquire := func(ctx context.Context) (lease, error) { return w.lease, ctx.Err() }
	dial := func(base string) adminAPI { return w.lb[base] }
	w.Controller = newController(config, w.state, acquire, dial, slog.New(slog.DiscardHandler))
	return w
}

// rounds runs n rounds.
func (w *world) rounds(t *testing.T, n int) {
	t.Helper()
	for range n {
		if err := w.runRound(context.Background(), w.lease); err != nil {
			t.Fatal(err)
		}
	}
}

// failRound runs a round that fails.
func (w *world) failRound(t *testing.T) {
	t.Helper()
	if err := w.runRound(context.Background(), w.lease); err == nil {
		t.Fatal("the round succeeds")
	}
}

// load loads the assignment.
func (w *world) load(t *testing.T) {
	t.Helper()
	if err := w.loadAssignment(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// check compares the replicas of every live balancer.
func (w *world) check(t *testing.T, want map[string][]string) {
	t.Helper()
	for id, replicas := range want {
		if got := w.lb[id].replicas(); !reflect.DeepEqual(got, replicas) {
			t.Errorf("%s: got %v, want %v", id, got, replicas)
		}
	}
}

func TestReplicasOfDeadBalancerAreAdoptedAndReturn(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	atHome := map[string][]string{"lb-us-0": {"us-0", "us-1"}, "lb-eu-0": {"eu-0"}, "lb-asia-0": {"asia-0"}}
	w.check(t, atHome)

	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter-1)
	w.check(t, atHome) // one or two failed probes have no effect
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-eu-0": {"eu-0", "us-0", "us-1"}, "lb-asia-0": {"asia-0"}})

	w.lb["lb-eu-0"].set(true) // two recover at the same time
	w.rounds(t, deadAfter)
	w.check(t, map[string][]string{"lb-asia-0": {"asia-0", "eu-0", "us-0", "us-1"}})

	w.lb["lb-asia-0"].set(true) // no balancer is alive
	w.rounds(t, deadAfter)

	for _, b := range w.lb {
		b.set(false)
	}
	w.rounds(t, 1)
	w.check(t, atHome)
}

// The machine of a lost balancer was replaced: its replicas return once the new one responds, not while it boots.
func TestReplicasReturnOnceNewBalancerResponds(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter)
	replaced := w.without()
	for i := range replaced.Balancers {
		if b := &replaced.Balancers[i]; b.ID == "lb-us-0" {
			b.Admin = "new"
		}
	}
	w.lb["new"] = &fakeBalancer{has: map[string]uint64{"us-0": 0, "us-1": 0}, dead: true}
	w.reload(t, replaced)
	for range deadAfter + 1 {
		w.rounds(t, 1)
		w.check(t, map[string][]string{"lb-eu-0": {"eu-0", "us-0", "us-1"}})
	}
	w.lb["new"].set(false)
	w.rounds(t, 1)
	w.check(t, map[string][]string{"new": {"us-0", "us-1"}, "lb-eu-0": {"eu-0"}})
}

// A replaced machine has another address, and balancers of other regions reach it at another URL
// than those of its own region.
func TestAttachUsesURLForBalancerRegion(t *testing.T) {
	w := newWorld()
	moved := w.without()
	for i := range moved.Replicas {
		if r := &moved.Replicas[i]; r.ID == "eu-0" {
			r.URL, r.RemoteURL = "https://10.0.0.9", "https://203.0.113.9"
		}
	}
	w.rounds(t, 1)
	w.reload(t, moved)
	w.rounds(t, 1)
	if got := w.lb["lb-eu-0"].url["eu-0"]; got != "https://10.0.0.9" {
		t.Errorf("at home: got %q", got)
	}
	w.lb["lb-eu-0"].set(true)
	w.rounds(t, deadAfter)
	if got := w.lb["lb-us-0"].url["eu-0"]; got != "https://203.0.113.9" {
		t.Errorf("adopted: got %q", got)
	}
}

func TestRestartedBalancerGetsMissingReplicas(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	w.lb["lb-us-0"].has = map[string]uint64{}
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}})
}

func TestOnlyManagedReplicasAreDetached(t *testing.T) {
	w := newWorld()
	w.lb["lb-eu-0"].has["by-hand"] = 0 // an operator attached it
	w.lb["lb-eu-0"].has["us-0"] = 0    // a managed replica at the wrong balancer
	w.lb["lb-eu-0"].has["old-3"] = 2   // of an old assignment: drained, then detached
	w.rounds(t, 2)
	w.check(t, map[string][]string{"lb-eu-0": {"by-hand", "eu-0"}, "lb-us-0": {"us-0", "us-1"}})
}

// A balancer may receive its configuration before the controller does. A new replica there can have the ID of an
// earlier one, and serves until the controller knows it too.
func TestNewReplicaOfBalancerConfigIsKept(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	with := w.config
	without := with
	without.Replicas = slices.DeleteFunc(slices.Clone(with.Replicas), func(r service.ControlledReplica) bool { return r.ID == "us-1" })
	w.reloaded = &without
	w.rounds(t, 2)
	w.check(t, map[string][]string{"lb-us-0": {"us-0"}})

	us := w.lb["lb-us-0"]
	us.configured = map[string]bool{"us-1": true}
	us.has["us-1"] = 0
	w.rounds(t, 2)
	w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}})
	w.reloaded = &with
	w.rounds(t, 1)
	if us.has["us-1"] == 0 {
		t.Error("the controller did not attach the replica once its configuration had it")
	}

	// At a balancer that is not its own, a configured replica is removed.
	w.lb["lb-eu-0"].configured = map[string]bool{"us-1": true}
	w.lb["lb-eu-0"].has["us-1"] = 0
	w.rounds(t, 2)
	w.check(t, map[string][]string{"lb-eu-0": {"eu-0"}, "lb-us-0": {"us-0", "us-1"}})
}

func TestReplicaIsNotAttachedBeforeDetach(t *testing.T) {
	w := newWorld()
	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter)
	w.lb["lb-eu-0"].stuck = true
	w.lb["lb-us-0"].has = map[string]uint64{}
	w.lb["lb-us-0"].set(false)
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-us-0": {}, "lb-eu-0": {"eu-0", "us-0", "us-1"}})
	w.lb["lb-eu-0"].stuck = false
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}, "lb-eu-0": {"eu-0"}})
}

func TestEpochIncreasesWithChanges(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	first := w.current.Epoch()
	if first == 0 || w.lb["lb-us-0"].has["us-0"] != first {
		t.Fatalf("epoch %d, replica has %d", first, w.lb["lb-us-0"].has["us-0"])
	}
	w.rounds(t, 3)
	if w.current.Epoch() != first {
		t.Errorf("nothing changed, but the epoch changed from %d to %d", first, w.current.Epoch())
	}
	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter)
	if w.current.Epoch() <= first {
		t.Errorf("got %d after %d", w.current.Epoch(), first)
	}
}

func TestEpochExceedsBalancersAfterStoreLoss(t *testing.T) {
	w := newWorld()
	w.lb["lb-us-0"].has["us-0"] = 40 // an epoch of the lost store
	w.rounds(t, 2)
	if got := w.lb["lb-us-0"].has["us-0"]; got <= 40 || got != w.current.Epoch() {
		t.Errorf("got epoch %d, want the current %d, above 40", got, w.current.Epoch())
	}
}

func TestEpochExceedsRememberedEpochs(t *testing.T) {
	w := newWorld()
	w.lb["lb-us-0"].has = map[string]uint64{}
	w.lb["lb-us-0"].gone = map[string]uint64{"us-0": 1000}
	w.rounds(t, 12)
	w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}})
}

func TestConflictReloadsAssignment(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	other, err := json.Marshal(Assignment{Owners: map[string]string{"us-0": "lb-eu-0"}, Token: 6}) // a late write of the previous leader
	if err != nil {
		t.Fatal(err)
	}
	w.state.data, w.state.revision = other, w.state.revision+1
	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter-1)
	if err := w.runRound(context.Background(), w.lease); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("got %v, want a conflict", err)
	}
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-eu-0": {"eu-0", "us-0", "us-1"}})
}

func TestCorruptAssignmentIsRecomputed(t *testing.T) {
	w := newWorld()
	w.state.data, w.state.revision = []byte("{"), 4
	if err := w.loadAssignment(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.rounds(t, 1)
	if w.current.Epoch() != 5 || len(w.current.Owners) != 4 {
		t.Errorf("got %+v", w.current)
	}
}

func TestRoundRequiresLease(t *testing.T) {
	w := newWorld()
	w.lb["lb-us-0"].has = map[string]uint64{}
	w.lease.lose()
	if err := w.runRound(context.Background(), w.lease); !errors.Is(err, errLeaseLost) {
		t.Errorf("got %v", err)
	}
	w.check(t, map[string][]string{"lb-us-0": {}})
}

func TestControllerSurvivesFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); w.runController(ctx) }()
		at := func(d time.Duration) { time.Sleep(d); synctest.Wait() }

		at(100 * time.Millisecond)
		w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}})
		w.lb["lb-us-0"].set(true)
		at(deadAfter * roundInterval)
		w.check(t, map[string][]string{"lb-eu-0": {"eu-0", "us-0", "us-1"}})

		w.state.mu.Lock()
		w.state.down = true
		w.state.mu.Unlock()
		w.lb["lb-us-0"].set(false)
		at(time.Hour)
		w.check(t, map[string][]string{"lb-eu-0": {"eu-0", "us-0", "us-1"}}) // an unpublished assignment is not applied
		w.state.mu.Lock()
		w.state.down = false
		w.state.mu.Unlock()
		at(2 * roundInterval)
		w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}, "lb-eu-0": {"eu-0"}})

		cancel()
		<-done
		if !w.lease.released {
			t.Error("the lease was not released")
		}
		if w.lease.renewals < int(time.Hour/leaseTTL) {
			t.Errorf("got %d renewals in an hour", w.lease.renewals)
		}
	})
}

func TestView(t *testing.T) {
	w := newWorld()
	w.setLease(w.lease)
	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter)
	srv := httptest.NewServer(w.handler())
	defer srv.Close()
	res, err := http.Get(srv.URL + "/v1/state")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v View
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if !v.Leading || v.Token != 7 || v.Store != StoreNotReplicated || v.Epoch != w.current.Epoch() {
		t.Errorf("got %s", data)
	}
	for _, r := range v.Replicas {
		if want := r.ID == "us-0" || r.ID == "us-1"; r.Adopted != want {
			t.Errorf("%s: adopted %t, want %t", r.ID, r.Adopted, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
