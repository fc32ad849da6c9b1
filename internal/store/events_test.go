package store

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

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func eventAt(id string, at time.Time) telemetry.Event {
	return telemetry.Event{ID: id, At: at, Actor: telemetry.ActorController, Kind: telemetry.EventLaunch, Region: "local/us", Object: "us-0", Message: "launched us-0"}
}

func eventIDs(events []telemetry.Event) string {
	var all []string
	for _, e := range events {
		all = append(all, e.ID)
	}
	return strings.Join(all, " ")
}

// Events keep their order, have one copy each, and can be selected by time, kind, region and number.
func TestEventsAreStored(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	ctx := t.Context()
	if events, err := st.ReadEvents(ctx, telemetry.EventQuery{}); err != nil || len(events) != 0 {
		t.Fatalf("events of an empty store: %v, %v", events, err)
	}
	other := eventAt("e", noon.Add(3*time.Second))
	other.Kind, other.Region = "of-a-newer-version", "local/eu"
	for _, e := range []telemetry.Event{
		eventAt("a", noon.Add(-48*time.Hour)), eventAt("b", noon), eventAt("b", noon), eventAt("c", noon.Add(time.Second)), eventAt("d", noon.Add(2*time.Second)), other,
	} {
		if err := st.AppendEvent(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		query telemetry.EventQuery
		want  string
	}{
		{telemetry.EventQuery{}, "a b c d e"},
		{telemetry.EventQuery{Since: noon}, "b c d e"},
		{telemetry.EventQuery{Since: noon.Add(time.Second)}, "c d e"},
		{telemetry.EventQuery{Since: noon.Add(time.Hour)}, ""},
		{telemetry.EventQuery{Limit: 2}, "d e"},
		{telemetry.EventQuery{Kinds: []telemetry.EventKind{telemetry.EventLaunch}, Limit: 2}, "c d"},
		{telemetry.EventQuery{Region: "eu"}, "e"},
		{telemetry.EventQuery{Region: "local/us"}, "a b c d"},
	} {
		if events, err := st.ReadEvents(ctx, c.query); err != nil || eventIDs(events) != c.want {
			t.Errorf("%+v: got %q, %v; want %q", c.query, eventIDs(events), err, c.want)
		}
	}
	events, _ := st.ReadEvents(ctx, telemetry.EventQuery{})
	if got := events[4]; got != other {
		t.Errorf("got %+v, want %+v", got, other)
	}
}

// Days older than 35 days are removed at the first event of a later day, younger ones stay. If events are
// rare, the 36 newest days with events stay, however old they are: a clock that is years ahead must not remove all.
func TestOldEventsAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		interval     int // days between two events
		oldest, kept int // days, events
	}{"daily": {1, pointsDays, pointsDays + 1}, "weekly": {7, 7 * pointsDays, pointsDays + 1}} {
		t.Run(name, func(t *testing.T) {
			st := connect(t, serve(t, t.TempDir()))
			base := time.Now()
			st.now = func() time.Time { return base }
			today := base.UTC().Truncate(24 * time.Hour)
			for n := 45; n >= 0; n-- { // more than are kept
				days := n * c.interval
				if err := st.AppendEvent(t.Context(), eventAt(fmt.Sprint(days), today.AddDate(0, 0, -days))); err != nil {
					t.Fatal(err)
				}
			}
			events, err := st.ReadEvents(t.Context(), telemetry.EventQuery{})
			if err != nil || len(events) != c.kept || events[0].ID != fmt.Sprint(c.oldest) || events[len(events)-1].ID != "0" {
				t.Fatalf("got %q, %v", eventIDs(events), err)
			}
		})
	}
}

// As time passes, an event is kept for 35 days and removed after them.
func TestEventsAreKeptFor35Days(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	base := time.Now()
	st.now = func() time.Time { return base }
	today := base.UTC().Truncate(24 * time.Hour)
	first := today.AddDate(0, 0, -pointsDays-1) // its day ends 35 days ago
	var oldest []string
	for day := first; !day.After(today); day = day.AddDate(0, 0, 1) {
		if err := st.AppendEvent(t.Context(), eventAt(day.Format(time.DateOnly), day)); err != nil {
			t.Fatal(err)
		}
		events, err := st.ReadEvents(t.Context(), telemetry.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		oldest = append(oldest, events[0].ID)
	}
	for i, id := range oldest {
		want := first
		if i == len(oldest)-1 { // the event of today
			want = first.AddDate(0, 0, 1)
		}
		if id != want.Format(time.DateOnly) {
			t.Errorf("after %d days the oldest event is of %s, want %s", i, id, want.Format(time.DateOnly))
		}
	}
}

// A follower gets the stored events and then every new one, across a restart of the server.
func TestFollowEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv := serve(t, dir)
	st := connect(t, srv)
	ctx, cancel := context.WithCancel(t.Context())
	followed := st.FollowEvents(ctx)
	defer func() {
		cancel()
		for range followed {
		}
	}()
	next := func(want string) {
		t.Helper()
		select {
		case e := <-followed:
			if e.ID != want {
				t.Fatalf("got event %q, want %q", e.ID, want)
			}
		case <-time.After(testkit.Timeout):
			t.Fatalf("no event %q", want)
		}
	}
	for _, id := range []string{"a", "b"} {
		if err := st.AppendEvent(ctx, eventAt(id, noon)); err != nil {
			t.Fatal(err)
		}
	}
	next("a")
	next("b")
	srv.Close()
	again, err := Serve(ctx, Options{Dir: dir, Listen: strings.TrimPrefix(srv.URL(), "nats://"), Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	testkit.Eventually(t, "the event is stored", func() bool { return st.AppendEvent(ctx, eventAt("c", noon)) == nil })
	next("c")
}

// memoryEvents is a store of events that can be unavailable.
type memoryEvents struct {
	mu     sync.Mutex
	away   bool
	events []telemetry.Event
}

func (m *memoryEvents) set(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

func (m *memoryEvents) AppendEvent(_ context.Context, e telemetry.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return ErrUnavailable
	}
	m.events = append(m.events, e)
	return nil
}

func (m *memoryEvents) ReadEvents(_ context.Context, q telemetry.EventQuery) ([]telemetry.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return nil, ErrUnavailable
	}
	return q.Select(m.events), nil
}

func (m *memoryEvents) stored() []telemetry.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

// runQueue runs a queue until the test ends.
func runQueue(t *testing.T, st EventStore, source string) *EventQueue {
	q := NewEventQueue(st, source, telemetry.Event{Actor: telemetry.ActorBalancer, Region: "local/us", Object: "lb-us-0"}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return q
}

// Events that are recorded during an outage are stored afterwards, in order. The oldest are dropped,
// counted, and an event tells their number and which process dropped them.
func TestQueueOutlivesOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &memoryEvents{away: true}
		q := runQueue(t, st, "c")
		const extra = 3
		for range maxQueuedEvents + extra {
			q.Record(telemetry.Event{Kind: telemetry.EventLaunch, Message: "launched\nus-0"})
		}
		time.Sleep(time.Hour)
		if len(st.stored()) != 0 || len(q.Pending()) != maxQueuedEvents {
			t.Fatalf("%d stored, %d pending", len(st.stored()), len(q.Pending()))
		}
		st.set(false)
		time.Sleep(eventRetryMax)
		got := st.stored()
		if len(got) != maxQueuedEvents+1 || got[0].Kind != telemetry.EventLost || got[0].Message != "3 events dropped" || got[1].ID != "c-4" || got[1].Message != "launched us-0" {
			t.Fatalf("%d stored, first %+v", len(got), got[:min(2, len(got))])
		}
		if e := got[0]; e.Actor != telemetry.ActorBalancer || e.Region != "local/us" || e.Object != "lb-us-0" {
			t.Errorf("the event about dropped events names %q, %q, %q", e.Actor, e.Region, e.Object)
		}
		for i, e := range got[1:] {
			if e.ID != fmt.Sprintf("c-%d", i+extra+1) {
				t.Fatalf("event %d is %s", i, e.ID)
			}
		}
		recorded, dropped := q.Counts()
		if recorded[telemetry.EventLaunch] != maxQueuedEvents+extra || dropped != extra || len(q.Pending()) != 0 {
			t.Errorf("counts: %v, %d dropped, %d pending", recorded, dropped, len(q.Pending()))
		}
	})
}

// A process can wait until its events are stored; it stops waiting when its time ends, and does not wait for later
// events.
func TestWaitForStoredEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &memoryEvents{away: true}
		q := runQueue(t, st, "c")
		q.WaitStored(t.Context()) // none
		q.Record(telemetry.Event{Kind: telemetry.EventLaunch})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		q.WaitStored(ctx)
		if n := len(st.stored()); ctx.Err() == nil || n != 0 {
			t.Fatalf("the wait ended, %d stored", n)
		}
		waited := make(chan int)
		go func() {
			q.WaitStored(t.Context())
			waited <- len(st.stored())
		}()
		synctest.Wait()
		st.set(false)
		if n := <-waited; n != 1 {
			t.Errorf("the wait ended with %d stored", n)
		}
	})
}

// The events that remain at shutdown are stored, unless the store is unavailable.
func TestQueueFlushesAtShutdown(t *testing.T) {
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			st := &memoryEvents{away: away}
			q := NewEventQueue(st, "c", telemetry.Event{Actor: telemetry.ActorController}, slog.New(slog.DiscardHandler))
			q.Record(telemetry.Event{Kind: telemetry.EventLaunch})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			q.Run(ctx)
			if stored := len(st.stored()); stored == 1 == away {
				t.Errorf("away %t: %d stored", away, stored)
			}
		})
	}
}

// A new leader observes that a balancer is still dead: the event is not recorded again.
func TestStatesAreRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &memoryEvents{}
		state := func(q *EventQueue, kind telemetry.EventKind) {
			q.RecordState(telemetry.Event{Kind: kind, Object: "lb-us-0"})
			synctest.Wait()
		}
		a, b := runQueue(t, st, "a"), runQueue(t, st, "b")
		state(a, telemetry.EventLeader)
		state(a, telemetry.EventDeath)
		state(a, telemetry.EventDeath)
		state(b, telemetry.EventLeader)
		state(b, telemetry.EventDeath)
		state(b, telemetry.EventRecovery)
		state(a, telemetry.EventLeader)
		state(a, telemetry.EventRecovery)
		state(a, telemetry.EventDeath)
		a.Record(telemetry.Event{Kind: telemetry.EventLaunch, Object: "lb-us-0"})
		a.Record(telemetry.Event{Kind: telemetry.EventLaunch, Object: "lb-us-0"})
		state(a, telemetry.EventDeath)
		var kinds []string
		for _, e := range st.stored() {
			kinds = append(kinds, string(e.Kind))
		}
		if got, want := strings.Join(kinds, " "), "leader death leader recovery leader death launch launch death"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// A corrupt event is skipped.
func TestCorruptEventIsSkipped(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	ctx := t.Context()
	_, js, err := st.eventStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	day := noon.Unix() / (60 * minutesPerDay)
	for _, data := range []string{"{", `{"id":"a","at":"2026-11-24T12:00:00Z","kind":"k","more":1}`} {
		if _, err := js.Publish(ctx, st.eventSubject(day), []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	events, err := st.ReadEvents(ctx, telemetry.EventQuery{})
	if err != nil || eventIDs(events) != "a" {
		t.Errorf("got %q, %v", eventIDs(events), err)
	}
}

// Without a connection, reads and writes fail at once.
func TestEventsWithoutAStore(t *testing.T) {
	srv := serve(t, t.TempDir())
	st := connect(t, srv)
	srv.Close()
	testkit.Eventually(t, "the connection is lost", func() bool { return !st.Connected() })
	if err := st.AppendEvent(t.Context(), eventAt("a", noon)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("AppendEvent returned %v", err)
	}
	if _, err := st.ReadEvents(t.Context(), telemetry.EventQuery{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("ReadEvents returned %v", err)
	}
}
