package lbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// Reloads are recorded with the keys that changed and no value; keys and certificates have their own
// kinds. The controller records changes of replicas.
func TestReloadEventsContainNoValues(t *testing.T) {
	changes := []string{
		"providers", "balancer.policy: least-load, was cost", "balancer.access_log: sk-secret, was off", "balancer.auth: 3 keys, 1 added, 0 removed",
		"balancer.tls: the certificate", "replicas: us-3 added", "replicas: us-0: the API key", "replicas: us-1: the API key", "peers: lb-eu-0 added", "peers: lb-asia-0 removed",
	}
	var got []string
	for _, g := range reloadGroups(changes) {
		got = append(got, string(g.kind)+": "+strings.Join(g.keys, ", "))
	}
	want := []string{
		"reload: providers, balancer.policy, balancer.access_log, peers",
		"keys: balancer.auth, replicas: us-0: the API key, replicas: us-1: the API key",
		"certificate: balancer.tls",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if groups := reloadGroups([]string{"replicas: us-3 added"}); len(groups) != 0 {
		t.Errorf("got %+v", groups)
	}
}

// awayEvents is a store of events that can be read only while it is not away.
type awayEvents struct {
	away   bool
	events []telemetry.Event
}

func (s *awayEvents) AppendEvent(context.Context, telemetry.Event) error { return errors.New("away") }

func (s *awayEvents) ReadEvents(_ context.Context, q telemetry.EventQuery) ([]telemetry.Event, error) {
	if s.away {
		return nil, store.ErrUnavailable
	}
	return q.Select(s.events), nil
}

// While the store is unavailable, a balancer reports the events in memory, and those that it recorded
// but could not store.
func TestEventsInMemoryAreReported(t *testing.T) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	var stored []telemetry.Event
	for i := range 3 * maxRecentEvents {
		stored = append(stored, telemetry.Event{ID: fmt.Sprint(i), At: at.Add(time.Duration(i) * time.Second), Kind: telemetry.EventLaunch})
	}
	st := &awayEvents{away: true, events: stored}
	b := &balancer{cfg: service.BalancerConfig{ID: "lb-us-0", Region: "local/us"}, log: slog.New(slog.DiscardHandler)}
	b.events = newServiceEvents(st, b, at)
	followed := make(chan telemetry.Event, len(stored))
	for _, e := range stored {
		followed <- e
	}
	close(followed)
	b.events.follow(followed)
	b.recordReload(telemetry.Reload{Changed: []string{"models"}})

	report := b.events.Report(t.Context(), telemetry.EventQuery{Limit: 3})
	if last := report.Events[2]; report.Complete || report.Problem == "" || last.Kind != telemetry.EventReload || last.Object != "lb-us-0" || last.Message != "lb-us-0 reloaded its configuration: models" {
		t.Errorf("got %+v", report)
	}
	if n := len(b.events.Recent(telemetry.MaxEvents)); n < maxRecentEvents || n > 2*maxRecentEvents {
		t.Errorf("%d events in memory", n)
	}
	st.away = false
	report = b.events.Report(t.Context(), telemetry.EventQuery{})
	if !report.Complete || len(report.Events) != len(stored)+1 || report.Events[len(stored)].Kind != telemetry.EventReload {
		t.Errorf("%t: %d events", report.Complete, len(report.Events))
	}
	(&balancer{}).recordReload(telemetry.Reload{Changed: []string{"models"}}) // without a store
}

// Complaint: while events of the controller waited for the store, 'skyserve events' printed "no events". They are reported
// until the controller has stored them, or no longer reports them.
func TestPendingEventsOfControllerAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &awayEvents{}
		b := &balancer{cfg: service.BalancerConfig{ID: "lb-us-0", Region: "local/us"}, log: slog.New(slog.DiscardHandler)}
		b.events = newServiceEvents(st, b, time.Now())
		expect := func(when string, want ...string) {
			t.Helper()
			report := b.events.Report(t.Context(), telemetry.EventQuery{})
			var got []string
			for _, e := range report.Events {
				got = append(got, e.ID)
			}
			if recent := b.events.Recent(telemetry.MaxEvents); !slices.Equal(got, want) || len(recent) != len(want) && len(st.events) == 0 {
				t.Errorf("%s: got %q, and %d in snapshots; want %q", when, got, len(recent), want)
			}
		}
		pending := func(source string, ids ...string) {
			p := telemetry.PendingEvents{Source: source}
			for _, id := range ids {
				p.Events = append(p.Events, telemetry.Event{ID: id, At: time.Now(), Kind: telemetry.EventDeath})
			}
			b.events.ReceivePending(p)
		}
		expect("at first")
		pending("lb-eu-0", "e0")
		pending("lb-asia-0", "a0")
		expect("two controllers", "a0", "e0")
		time.Sleep(telemetry.PendingTTL - time.Second)
		pending("lb-eu-0", "e1")
		expect("a later report replaces the earlier one", "a0", "e1")
		time.Sleep(time.Second)
		expect("a controller no longer reports", "e1")
		st.events = []telemetry.Event{{ID: "e1", At: time.Now()}}
		expect("stored", "e1")
		st.away = true
		expect("the store cannot be read", "e1")
		time.Sleep(telemetry.PendingTTL)
		st.away, st.events = false, nil
		expect("all reports are old")
	})
}

// storingEvents is a store that stores the queued events while it is read.
type storingEvents struct {
	awayEvents
	queue *store.EventQueue
}

func (s *storingEvents) AppendEvent(_ context.Context, e telemetry.Event) error {
	s.events = append(s.events, e)
	return nil
}

func (s *storingEvents) ReadEvents(ctx context.Context, q telemetry.EventQuery) ([]telemetry.Event, error) {
	before, err := s.awayEvents.ReadEvents(ctx, q)
	ended, end := context.WithCancel(ctx)
	end()
	s.queue.Run(ended)
	return before, err
}

// Complaint: an event that was stored while 'skyserve events' read the store was missing from its output.
func TestEventStoredDuringReadIsReported(t *testing.T) {
	st := &storingEvents{}
	b := &balancer{cfg: service.BalancerConfig{ID: "lb-us-0", Region: "local/us"}, log: slog.New(slog.DiscardHandler)}
	b.events = newServiceEvents(st, b, time.Now())
	st.queue = b.events.queue
	b.recordReload(telemetry.Reload{Changed: []string{"models"}})
	for range 2 {
		if report := b.events.Report(t.Context(), telemetry.EventQuery{}); !report.Complete || len(report.Events) != 1 {
			t.Errorf("got %+v", report)
		}
	}
}

func TestActorOfMember(t *testing.T) {
	for want, name := range map[string]identity.Name{
		"operator:ann@desk": {Role: identity.Operator, ID: "ann@desk"},
		"controller":        {Role: identity.Controller, ID: "controller"},
	} {
		if got := certificateActor(name); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// recorded returns the events that a balancer records.
func recorded(t *testing.T, act func(b *balancer)) []string {
	t.Helper()
	b := &balancer{cfg: service.BalancerConfig{ID: "lb-us-0", Region: "local/us"}, log: slog.New(slog.DiscardHandler)}
	b.events = newServiceEvents(&awayEvents{away: true}, b, time.Now())
	act(b)
	var all []string
	for _, e := range b.events.queue.Pending() {
		if e.Actor != telemetry.ActorBalancer || e.Object != "lb-us-0" || e.Region != "local/us" || e.ID == "" || e.At.IsZero() {
			t.Errorf("got %+v", e)
		}
		all = append(all, string(e.Kind)+": "+e.Message+": "+e.Reason)
	}
	return all
}

// A reload is recorded with its actor and cause, changed keys and certificates as events of their own.
func TestReloadIsRecorded(t *testing.T) {
	got := recorded(t, func(b *balancer) {
		b.recordReload(telemetry.Reload{Changed: []string{"balancer.policy: least-load, was cost", "balancer.auth: 3 keys, 1 added, 0 removed", "balancer.tls: the certificate"}})
	})
	const cause = "its configuration file or a file to which it refers has changed"
	want := []string{
		"reload: lb-us-0 reloaded its configuration: balancer.policy: " + cause,
		"keys: lb-us-0 reloaded its configuration: balancer.auth: " + cause,
		"certificate: lb-us-0 reloaded its configuration: balancer.tls: " + cause,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A public certificate whose files were replaced, and one that was obtained by ACME, are recorded.
func TestNewCertificateIsRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		load func(b *balancer)
		want string
	}{
		"files": {(*balancer).reloadCertificates, "certificate: lb-us-0 uses a new certificate, valid until 2102-01-01: its files were replaced"},
		"ACME": {func(b *balancer) {
			b.cfg.Certificate = &service.CertificateConfig{Name: "chat.example.com"}
			b.certificateChanged()
		}, "certificate: lb-us-0 uses a new certificate for chat.example.com, valid until 2102-01-01: the previous one expires or is missing"},
	} {
		got := recorded(t, func(b *balancer) {
			files := pairIn(t.TempDir())
			writePair(t, files, 1)
			pair, err := loadPair(files)
			if err != nil {
				t.Fatal(err)
			}
			b.cert = &certificate{}
			b.cert.replace(pair)
			c.load(b)
			writePair(t, files, 2)
			c.load(b)
			c.load(b)
		})
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
