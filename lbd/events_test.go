package lbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
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

func TestActorOfMember(t *testing.T) {
	for want, name := range map[string]identity.Name{
		"operator:ann@desk": {Role: identity.Operator, ID: "ann@desk"},
		"controller":        {Role: identity.Controller, ID: "controller"},
	} {
		if got := memberActor(name); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
