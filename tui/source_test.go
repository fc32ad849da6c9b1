package tui

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

// admin serves the snapshot of a service until the test makes it fail.
type admin struct {
	*httptest.Server
	service string
	status  int
	asked   int
}

func newAdmin(t *testing.T, service string) *admin {
	t.Helper()
	a := &admin{service: service, status: 200}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.asked++
		w.WriteHeader(a.status)
		if a.status == 200 {
			json.NewEncoder(w).Encode(telemetry.Snapshot{Service: a.service})
			return
		}
		w.Write([]byte(`{"error":{"message":"no longer"}}`))
	}))
	t.Cleanup(a.Close)
	return a
}

func sourceOf(service string, admins ...*admin) *SnapshotSource {
	var clients []*telemetry.Client
	for _, a := range admins {
		clients = append(clients, telemetry.NewClient(a.URL, nil))
	}
	return NewSource(service, clients...)
}

func TestSourceFailsOverAndStays(t *testing.T) {
	a, b := newAdmin(t, "chat"), newAdmin(t, "chat")
	s := sourceOf("chat", a, b)
	from := func(want *admin) {
		t.Helper()
		if _, url, err := s.Fetch(context.Background()); err != nil || url != want.URL {
			t.Fatalf("got %s, %v; want %s", url, err, want.URL)
		}
	}
	from(a)
	a.status = 503
	from(b)
	a.status = 200
	asked := a.asked
	from(b) // stays with b while b responds
	if a.asked != asked {
		t.Error("a failed admin API must not be queried while another responds")
	}
	b.status = 500
	from(a)
}

func TestSourceRejectsAnotherService(t *testing.T) {
	s := sourceOf("chat", newAdmin(t, "other"))
	if _, _, err := s.Fetch(context.Background()); err == nil || !strings.Contains(err.Error(), `serves "other", not "chat"`) {
		t.Errorf("got %v", err)
	}
	if _, _, err := sourceOf("", newAdmin(t, "other")).Fetch(context.Background()); err != nil {
		t.Errorf("without a name any service must be accepted: %v", err)
	}
}

func TestSourceJoinsErrorsOfAllAdmins(t *testing.T) {
	a, b := newAdmin(t, "chat"), newAdmin(t, "chat")
	a.status = 503
	b.Close()
	s := sourceOf("chat", a, b)
	_, _, err := s.Fetch(context.Background())
	if err == nil || !strings.Contains(err.Error(), a.URL) || !strings.Contains(err.Error(), b.URL) {
		t.Fatalf("got %v, want both addresses", err)
	}
	if got, want := shortError(err), a.URL+": 503 no longer; "+b.URL+": connection refused"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := s.String(), a.URL+", "+b.URL; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSourceWithoutAdmins(t *testing.T) {
	if _, _, err := NewSource("chat").Fetch(context.Background()); err == nil {
		t.Error("want an error")
	}
}

func TestSourceStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a, b := newAdmin(t, "chat"), newAdmin(t, "chat")
	if _, _, err := sourceOf("", a, b).Fetch(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if a.asked+b.asked != 0 {
		t.Error("no admin API may be queried after the end")
	}
}
