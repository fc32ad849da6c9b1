package controller

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/testkit"
)

// countRecord is a record.
type countRecord struct {
	N    int    `json:"n"`
	Text string `json:"text,omitempty"`
}

// twoTerms returns the records of two successive leaders over a real store; both leases seem valid, as that
// of a leader whose process was stopped.
func twoTerms(t *testing.T) (first, second termRecords, st *store.Store, url string) {
	t.Helper()
	srv, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	if st, err = store.Connect(t.Context(), srv.URL(), "", store.ForService("chat")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return termRecords{"chat", termLease{token: 1}, st}, termRecords{"chat", termLease{token: 2}, st}, st, srv.URL()
}

// termLease is a valid lease with a token.
type termLease struct{ token uint64 }

func (l termLease) Token() uint64      { return l.token }
func (l termLease) Valid() bool        { return true }
func (l termLease) Expires() time.Time { return time.Now().Add(leaseTTL) }

func (l termLease) Renew(context.Context) error   { return nil }
func (l termLease) Release(context.Context) error { return nil }

// A later leader reads what the earlier one has stored; from then on the earlier one stores nothing, also
// before the later one has.
func TestRecordsAreFenced(t *testing.T) {
	first, second, st, _ := twoTerms(t)
	var got countRecord
	if found, err := first.Load(t.Context(), "launches", &got); found || err != nil || got.N != 0 {
		t.Errorf("an empty store: %v, %+v, %v", found, got, err)
	}
	if err := first.Store(t.Context(), "launches", countRecord{N: 1, Text: "a"}); err != nil {
		t.Fatal(err)
	}
	if found, err := second.Load(t.Context(), "launches", &got); !found || err != nil || got.N != 1 {
		t.Errorf("the next leader: %v, %+v, %v", found, got, err)
	}
	if err := first.Store(t.Context(), "launches", countRecord{N: 9}); !errors.Is(err, errSuperseded) {
		t.Errorf("the earlier leader stores: %v", err)
	}
	if _, err := first.Load(t.Context(), "launches", &countRecord{}); !errors.Is(err, errSuperseded) {
		t.Errorf("the earlier leader loads: %v", err)
	}
	if err := second.Store(t.Context(), "launches", countRecord{N: 2}); err != nil {
		t.Fatal(err)
	}
	got = countRecord{}
	if found, err := second.Load(t.Context(), "launches", &got); !found || err != nil || got != (countRecord{N: 2}) {
		t.Errorf("loaded %v, %+v, %v", found, got, err)
	}
	other := second
	other.service = "other"
	if found, err := other.Load(t.Context(), "launches", &countRecord{}); found || err != nil {
		t.Errorf("another service in the store: %v, %v", found, err)
	}

	if _, err := st.Put(t.Context(), "launches.chat", []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Load(t.Context(), "launches", &got); !errors.Is(err, ErrDamagedRecord) {
		t.Errorf("a damaged record: %v", err)
	}
	if err := second.Store(t.Context(), "launches", countRecord{N: 3}); err != nil {
		t.Errorf("replacing a damaged record: %v", err)
	}
	st.Close()
	if _, err := second.Load(t.Context(), "launches", &got); err == nil || errors.Is(err, ErrDamagedRecord) {
		t.Errorf("without a store: %v", err)
	}
}

// countingMachines counts the iterations of all leaders in a record.
type countingMachines struct {
	records Records
	counted countRecord
	loaded  bool
	seen    chan int
}

func (m *countingMachines) UseRecords(r Records) { m.records, m.loaded = r, false }
func (m *countingMachines) Wait()                {}

func (m *countingMachines) Reconcile(ctx context.Context, _ func() error) bool {
	if !m.loaded {
		if _, err := m.records.Load(ctx, "count", &m.counted); err != nil {
			return true
		}
		m.loaded = true
	}
	m.counted.N++
	if m.records.Store(ctx, "count", m.counted) == nil {
		select {
		case m.seen <- m.counted.N:
		default:
		}
	}
	return true
}

// A standby that takes over continues the records of the leader.
func TestStandbyContinuesRecords(t *testing.T) {
	_, _, _, url := twoTerms(t)
	run := func() (m *countingMachines, stop func()) {
		m = &countingMachines{seen: make(chan int, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		config := service.ControllerConfig{Service: "chat", Listen: testkit.FreeAddr(), StoreURL: url}
		go func() { done <- Run(ctx, config, slog.New(slog.DiscardHandler), WithMachines(m)) }()
		return m, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	leader, stopLeader := run()
	last := <-leader.seen
	standby, stop := run()
	defer stop()
	stopLeader()
	if n := <-standby.seen; n <= last {
		t.Errorf("the standby counts from %d, the leader came to %d", n, last)
	}
}

// A record that balancers write can be read without owning it; one that is missing or damaged changes nothing.
func TestRecordOfBalancersIsRead(t *testing.T) {
	first, second, st, _ := twoTerms(t)
	value := countRecord{N: 7}
	if err := first.Read(t.Context(), "count", &value); err != nil || value.N != 7 {
		t.Errorf("without a record: %+v, %v", value, err)
	}
	if _, err := st.Put(t.Context(), "count.chat", []byte(`{"n": 1}`)); err != nil {
		t.Fatal(err)
	}
	for _, r := range []termRecords{second, first} { // the second does not take it from the first
		if err := r.Read(t.Context(), "count", &value); err != nil || value.N != 1 {
			t.Errorf("got %+v, %v", value, err)
		}
	}
	if _, err := st.Put(t.Context(), "count.chat", []byte(`{"n": 1`)); err != nil {
		t.Fatal(err)
	}
	if err := first.Read(t.Context(), "count", &value); !errors.Is(err, ErrDamagedRecord) {
		t.Errorf("of a damaged record: %v", err)
	}
}
