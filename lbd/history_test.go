package lbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// fakePointStore is an in-memory store that can be unavailable.
type fakePointStore struct {
	mu      sync.Mutex
	away    error
	points  map[pointKey]telemetry.Point
	appends int
	largest int
}

func newFakePointStore() *fakePointStore {
	return &fakePointStore{points: map[pointKey]telemetry.Point{}}
}

func (s *fakePointStore) AppendPoints(ctx context.Context, points []telemetry.Point) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(s.away, ctx.Err()); err != nil {
		return err
	}
	s.appends++
	s.largest = max(s.largest, len(points))
	for _, p := range points {
		s.points[keyOf(p)] = p
	}
	return nil
}

func (s *fakePointStore) ReadPoints(ctx context.Context, since int64, yield func(telemetry.Point) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(s.away, ctx.Err()); err != nil {
		return err
	}
	for _, p := range s.points {
		if p.Minute >= since {
			if err := yield(p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *fakePointStore) set(change func(*fakePointStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// requests returns the numbers of a balancer's stored requests, by minute.
func (s *fakePointStore) requests(balancer string) map[int64]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[int64]int64{}
	for _, p := range s.points {
		if p.Balancer == balancer {
			n[p.Minute] += p.Requests
		}
	}
	return n
}

// memory contains the minutes in the memory of a runtime.
type memory struct {
	mu     sync.Mutex
	points []telemetry.Point
}

func point(minute int64, requests int64) telemetry.Point {
	return telemetry.Point{Minute: minute, Balancer: "lb-us-0", Region: "local/us", Model: "llama", Tier: service.TierFast, Requests: requests}
}

// count adds a request in the current minute.
func (m *memory) count() {
	m.mu.Lock()
	defer m.mu.Unlock()
	minute := time.Now().Unix() / 60
	if n := len(m.points); n > 0 && m.points[n-1].Minute == minute {
		m.points[n-1].Requests++
		return
	}
	m.points = append(m.points, point(minute, 1))
}

func (m *memory) since(minute int64) []telemetry.Point {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.points, func(p telemetry.Point) bool { return p.Minute >= minute })
	if i < 0 {
		return nil
	}
	return slices.Clone(m.points[i:])
}

// remembering runs a test with fake time and a history that pushes.
func remembering(t *testing.T, s *fakePointStore, test func(t *testing.T, h *history, m *memory, stop func())) {
	synctest.Test(t, func(t *testing.T) {
		var m memory
		h := newHistory("lb-us-0", m.since, s, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { h.runHistory(ctx) })
		stop := func() { cancel(); wg.Wait() }
		defer stop()
		test(t, h, &m, stop)
	})
}

func TestHistoryReachesStore(t *testing.T) {
	s := newFakePointStore()
	remembering(t, s, func(t *testing.T, _ *history, m *memory, stop func()) {
		began := time.Now().Unix() / 60
		for range 25 {
			m.count()
			time.Sleep(6 * time.Second)
		}
		time.Sleep(time.Minute)
		want := map[int64]int64{began: 10, began + 1: 10, began + 2: 5}
		if got := s.requests("lb-us-0"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("stored %v, want %v", got, want)
		}
		appends := s.appends
		time.Sleep(time.Hour)
		if s.appends != appends {
			t.Errorf("%d appends in an hour without traffic", s.appends-appends)
		}
		m.count()
		stop()
		if got := s.requests("lb-us-0"); len(got) != 4 {
			t.Errorf("the last minute was not stored at the end: %v", got)
		}
	})
}

func TestHistoryWaitsForStore(t *testing.T) {
	s := newFakePointStore()
	s.away = errors.New("store unavailable")
	remembering(t, s, func(t *testing.T, h *history, m *memory, _ func()) {
		for range 8 * 60 {
			m.count()
			time.Sleep(time.Minute)
		}
		points, complete, err := h.History(t.Context(), 0)
		if err != nil || complete || len(points) != 8*60 {
			t.Errorf("while away: %d points, complete %v, %v", len(points), complete, err)
		}
		s.set(func(s *fakePointStore) { s.away = nil })
		time.Sleep(maxPushInterval + time.Second)
		if got := s.requests("lb-us-0"); len(got) != 8*60 {
			t.Errorf("stored %d minutes, want 480", len(got))
		}
		if points, complete, err = h.History(t.Context(), 0); err != nil || !complete || len(points) != 8*60 {
			t.Errorf("when back: %d points, complete %v, %v", len(points), complete, err)
		}
	})
}

func TestLongBacklogIsSentInBatches(t *testing.T) {
	s := newFakePointStore()
	m := &memory{}
	for minute := range int64(2*pushBatch + 10) {
		m.points = append(m.points, point(minute, 1))
	}
	h := newHistory("lb-us-0", m.since, s, slog.New(slog.DiscardHandler))
	if err := h.pushPoints(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.points) != len(m.points) || s.largest > pushBatch || s.appends != 3 {
		t.Errorf("stored %d of %d in %d appends of at most %d", len(s.points), len(m.points), s.appends, s.largest)
	}
	if err := h.pushPoints(t.Context()); err != nil || s.appends != 3 {
		t.Errorf("%d appends though nothing changed, %v", s.appends, err)
	}
}

// A balancer that restarts within a minute does not overwrite its earlier counts.
func TestRestartWithinAMinute(t *testing.T) {
	s := newFakePointStore()
	remembering(t, s, func(t *testing.T, h *history, m *memory, stop func()) {
		for range 3 {
			m.count()
		}
		stop()
		again := &memory{}
		h2 := newHistory("lb-us-0", again.since, s, slog.New(slog.DiscardHandler))
		again.count()
		for range 2 { // once before the first push, once after
			points, complete, err := h2.History(t.Context(), 0)
			if err != nil || !complete || len(points) != 1 || points[0].Requests != 4 {
				t.Errorf("history %+v, %v, %v", points, complete, err)
			}
			if err := h2.pushPoints(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.requests("lb-us-0"); fmt.Sprint(got) != fmt.Sprint(map[int64]int64{h.startMinute: 4}) {
			t.Errorf("stored %v, want 4 in one minute", got)
		}
	})
}

func TestHistoryMergesAllBalancers(t *testing.T) {
	s := newFakePointStore()
	other := point(100, 7)
	other.Balancer, other.Region = "lb-eu-0", "local/eu"
	stale := point(101, 1)
	s.points[keyOf(other)], s.points[keyOf(stale)] = other, stale
	m := &memory{points: []telemetry.Point{point(101, 5), point(102, 6)}}
	h := newHistory("lb-us-0", m.since, s, slog.New(slog.DiscardHandler))
	points, complete, err := h.History(t.Context(), 100)
	want := []telemetry.Point{other, point(101, 5), point(102, 6)}
	if err != nil || !complete || !slices.Equal(points, want) {
		t.Errorf("got %+v, %v, %v\nwant %+v", points, complete, err, want)
	}
	if points, _, _ := h.History(t.Context(), 102); !slices.Equal(points, want[2:]) {
		t.Errorf("since 102: %+v", points)
	}
}

// Readers of the history ask every balancer for the points that the store may lack.
func TestUnstoredPoints(t *testing.T) {
	s := newFakePointStore()
	remembering(t, s, func(t *testing.T, h *history, m *memory, stop func()) {
		first := time.Now().Unix() / 60
		check := func(when string, since int64, want ...telemetry.Point) {
			t.Helper()
			if got := h.UnstoredPoints(since); !slices.Equal(got, want) {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		m.count()
		check("before the first push", 0, point(first, 1))
		pass := func(d time.Duration) { // also what the balancer stores at the same time
			time.Sleep(d)
			synctest.Wait()
		}
		pass(time.Minute + pushInterval)
		m.count()
		pass(pushInterval)
		m.count()
		check("this minute is stored in part", 0, point(first+1, 2))
		s.set(func(s *fakePointStore) { s.away = errors.New("no majority") })
		pass(2 * time.Minute)
		m.count()
		check("the store is unavailable", 0, point(first+1, 2), point(first+3, 1))
		check("only the last minute", first+3, point(first+3, 1))
	})
}

func TestHistoryWithoutStore(t *testing.T) {
	m := &memory{points: []telemetry.Point{point(101, 5)}}
	h := newHistory("lb-us-0", m.since, nil, slog.New(slog.DiscardHandler))
	h.runHistory(t.Context()) // does nothing without a store
	points, complete, err := h.History(t.Context(), 0)
	if err != nil || complete || !slices.Equal(points, m.points) {
		t.Errorf("got %+v, %v, %v", points, complete, err)
	}
}

func TestHistoryOfRunningBalancer(t *testing.T) {
	s := newFakePointStore()
	e := newEngine(t, "llama", "")
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"}), Options{Store: s})
	hc := client(t)
	for range 3 {
		if got := ask(t, hc, n.public, "llama"); got.status != 200 {
			t.Fatalf("got %+v", got)
		}
	}
	testkit.Eventually(t, "the tokens are counted", func() bool {
		points, complete, err := n.admin.History(context.Background(), 0)
		var requests, prompt int64
		for _, p := range points {
			requests, prompt = requests+p.Requests, prompt+p.PromptTokens
		}
		return err == nil && complete && requests == 3 && prompt == 21
	})
	n.stop()
	if err := n.wait(); err != nil {
		t.Error(err)
	}
	var sum int64
	for _, requests := range s.requests("lb-us-0") {
		sum += requests
	}
	if sum != 3 {
		t.Errorf("stored %d requests, want 3", sum)
	}
}

func TestUnreachableStoreDelaysNothing(t *testing.T) {
	var log lines
	e := newEngine(t, "llama", "")
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"})
	cfg.StoreURL, cfg.StoreToken = "nats://127.0.0.1:1", "store secret"
	n := start(t, cfg, Options{Logger: log.logger()})
	if got := ask(t, client(t), n.public, "llama"); got.status != 200 {
		t.Errorf("got %+v", got)
	}
	if _, complete, err := n.admin.History(context.Background(), 0); err != nil || complete {
		t.Errorf("complete %v, %v", complete, err)
	}
	n.stop()
	if err := n.wait(); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "store secret") || !strings.Contains(text, "127.0.0.1:1") {
		t.Errorf("log:\n%s", text)
	}
}

// Several services may keep their state in one NATS cluster, and their balancers have the same ids.
func TestServicesSharingAStoreAreIsolated(t *testing.T) {
	t.Parallel()
	srv, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	e := newEngine(t, "llama", "")
	of := func(name string) service.BalancerConfig {
		cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"})
		cfg.Service, cfg.StoreURL, cfg.StoreToken = name, srv.URL(), "secret"
		return cfg
	}
	requests := func(n *node) (sum int64, complete bool) {
		points, complete, err := n.admin.History(context.Background(), 0)
		for _, p := range points {
			sum += p.Requests
		}
		return sum, complete && err == nil
	}
	first := start(t, of("one"), Options{})
	if got := ask(t, client(t), first.public, "llama"); got.status != 200 {
		t.Fatalf("got %+v", got)
	}
	testkit.Eventually(t, "the store can be reached", func() bool { _, complete := requests(first); return complete })
	first.stop() // it stores its counts
	if err := first.wait(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{"one": 1, "two": 0} {
		n := start(t, of(name), Options{})
		var got int64
		testkit.Eventually(t, "the history is complete", func() bool {
			sum, complete := requests(n)
			got = sum
			return complete
		})
		if got != want {
			t.Errorf("service %s sees %d requests, want %d", name, got, want)
		}
	}
}
