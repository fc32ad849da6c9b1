package admin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// fakeEvents records events in memory.
type fakeEvents struct {
	recorded []telemetry.Event
	pending  []telemetry.PendingEvents
	asked    telemetry.EventQuery
	report   telemetry.EventReport
	stored   chan struct{} // closed when the events are stored; nil = they are
}

func (f *fakeEvents) WaitStored(ctx context.Context) {
	if f.stored != nil && len(f.recorded) > 0 {
		select {
		case <-ctx.Done():
		case <-f.stored:
		}
	}
}

func (f *fakeEvents) ReceivePending(p telemetry.PendingEvents) { f.pending = append(f.pending, p) }

func (f *fakeEvents) Record(e telemetry.Event) { f.recorded = append(f.recorded, e) }

func (f *fakeEvents) Report(_ context.Context, q telemetry.EventQuery) telemetry.EventReport {
	f.asked = q
	return f.report
}

func (f *fakeEvents) Recent(n int) []telemetry.Event { return f.recorded[max(0, len(f.recorded)-n):] }

// An event's actor is the name in the client's certificate; only clients without one may state a
// name, and only that of an operator.
func TestActorOfRecordedEvents(t *testing.T) {
	for name, c := range map[string]struct{ certified, stated, want string }{
		"certificate":           {"operator:ann", "operator:eve", "operator:ann"},
		"controller":            {"controller", "operator:eve", "controller"},
		"no certificate":        {"", "operator:bob@desk", "operator:bob@desk"},
		"states no operator":    {"", "cloud", "operator:unknown"},
		"states nothing":        {"", "", "operator:unknown"},
		"states an empty name":  {"", "operator:", "operator:unknown"},
		"certificate, no claim": {"operator:ann", "", "operator:ann"},
	} {
		log := &fakeEvents{}
		a := api(&balancer{}, func(o *Options) { o.Events = log })
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.certified != "" {
				r = WithActor(r, c.certified)
			}
			a.ServeCertified(w, r)
		})
		srv := httptest.NewServer(handler)
		err := telemetry.NewClient(srv.URL, srv.Client()).RecordEvents(t.Context(), []telemetry.Event{{Actor: c.stated, Kind: telemetry.EventDrain, Object: "us-0", Message: "drained us-0"}})
		srv.Close()
		if err != nil || len(log.recorded) != 1 || log.recorded[0].Actor != c.want {
			t.Errorf("%s: got %+v, %v; want actor %q", name, log.recorded, err, c.want)
		}
	}
}

// Changes by hand are recorded; those of the controller and of up are not, since they record their own.
func TestChangesByHandAreRecorded(t *testing.T) {
	log := &fakeEvents{}
	a := api(&balancer{}, func(o *Options) { o.Events = log })
	for _, c := range []struct{ method, target, body string }{
		{"POST", "/workers", `{"id":"us-7","url":"http://127.0.0.1:9","model":"m"}`},
		{"POST", "/workers/us-7/drain", ""},
		{"POST", "/workers/us-7/drain?by=controller", ""},
		{"DELETE", "/workers/us-7", ""},
		{"POST", "/workers", `{"id":"us-8","url":"http://127.0.0.1:9","model":"m","epoch":3}`},
		{"DELETE", "/workers/us-8?epoch=4", ""},
	} {
		if status, body := call(a, c.method, c.target, c.body); status/100 != 2 {
			t.Errorf("%s %s: %d %s", c.method, c.target, status, body)
		}
	}
	var got []string
	for _, e := range log.recorded {
		got = append(got, string(e.Kind)+" "+e.Object+" by "+e.Actor)
	}
	if want := "attach us-7 by operator:unknown, drain us-7 by operator:unknown, detach us-7 by operator:unknown"; strings.Join(got, ", ") != want {
		t.Errorf("got %q", got)
	}
	if events := a.Snapshot().Events; len(events) != 3 {
		t.Errorf("snapshot: %+v", events)
	}
}

// A command ends after its event is stored, and while the store is unavailable soon after its change.
func TestCommandEndsAfterItsEventIsStored(t *testing.T) {
	for name, takes := range map[string]time.Duration{"available": 300 * time.Millisecond, "unavailable": time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			for _, c := range []struct{ method, target, body string }{
				{"POST", "/v1/service/events", `{"events":[{"kind":"drain","object":"us-0","message":"drained us-0"}]}`},
				{"POST", "/workers", `{"id":"us-7","url":"http://127.0.0.1:9","model":"m"}`},
				{"POST", "/workers/us-0/drain", ""},
				{"DELETE", "/workers/us-0", ""},
			} {
				log := &fakeEvents{stored: make(chan struct{})}
				a := api(&balancer{}, func(o *Options) { o.Events = log })
				start := time.Now()
				if c.target != "/workers" {
					if _, err := a.opts.Workers.Add(service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:9", Model: "m"}); err != nil {
						t.Fatal(err)
					}
				}
				time.AfterFunc(takes, func() { close(log.stored) })
				status, body := call(a, c.method, c.target, c.body)
				if took := time.Since(start); status/100 != 2 || took != min(takes, storedTimeout) || len(log.recorded) != 1 {
					t.Errorf("%s: %s %s: %d %s after %s, %d events", name, c.method, c.target, status, body, took, len(log.recorded))
				}
				<-log.stored
			}
		})
	}
}

func TestQueryOfEvents(t *testing.T) {
	log := &fakeEvents{report: telemetry.EventReport{Problem: "store unavailable"}}
	a := api(&balancer{}, func(o *Options) { o.Events = log })
	srv := httptest.NewServer(http.HandlerFunc(a.ServeCertified))
	defer srv.Close()
	since := time.Date(2026, 11, 24, 12, 0, 0, 5, time.UTC)
	q := telemetry.EventQuery{Since: since, Kinds: []telemetry.EventKind{"death", "a b"}, Region: "local/us", Limit: 3}
	report, err := telemetry.NewClient(srv.URL, srv.Client()).Events(t.Context(), q)
	if err != nil || report.Complete || report.Problem != "store unavailable" || report.Events == nil {
		t.Errorf("got %+v, %v", report, err)
	}
	if got := log.asked; !got.Since.Equal(since) || len(got.Kinds) != 2 || got.Kinds[1] != "a b" || got.Region != "local/us" || got.Limit != 3 {
		t.Errorf("asked %+v", got)
	}
	none := api(&balancer{}, nil)
	for _, c := range []struct {
		api                  *API
		method, target, body string
		status               int
		want                 string
	}{
		{a, "GET", "/v1/service/events?since=yesterday", "", 400, `since must be a time such as 2026-11-24T12:00:00Z, got \"yesterday\"`},
		{a, "GET", "/v1/service/events?limit=0", "", 400, "limit must be from 1 to 10000"},
		{a, "POST", "/v1/service/events", "{", 400, "reading the events: unexpected EOF"},
		{a, "POST", "/v1/service/events", `{"events":[{"kind":"drain"}]}`, 400, "events[0]: message: missing"},
		{a, "POST", "/v1/service/events", `{"events":[{"message":"x"}]}`, 400, "events[0]: kind: missing"},
		{none, "GET", "/v1/service/events", "", 404, "set store_url"},
		{none, "POST", "/v1/service/events", `{"events":[]}`, 404, "set store_url"},
		{a, "PUT", "/v1/service/events/pending", "{", 400, "reading the pending events: unexpected EOF"},
		{a, "PUT", "/v1/service/events/pending", `{"events":[]}`, 400, "source is required"},
		{a, "PUT", "/v1/service/events/pending", `{"source":"c","events":[` + strings.Repeat(`{},`, telemetry.MaxPendingEvents) + `{}]}`, 400, `at most 200 events, got source \"c\" with 201`},
		{none, "PUT", "/v1/service/events/pending", `{"source":"c"}`, 404, "has no store"},
	} {
		if status, body := call(c.api, c.method, c.target, c.body); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: got %d %s", c.method, c.target, status, body)
		}
	}
	if len(log.recorded) != 0 {
		t.Errorf("recorded %+v", log.recorded)
	}
}

// A balancer keeps the pending events of controllers, with their actors, and not those of an operator.
func TestOnlyControllersReportPendingEvents(t *testing.T) {
	for certified, accepted := range map[string]bool{"": true, "controller": true, "operator:ann": false, "balancer": false} {
		log := &fakeEvents{}
		a := api(&balancer{}, func(o *Options) { o.Events = log })
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if certified != "" {
				r = WithActor(r, certified)
			}
			a.ServeCertified(w, r)
		}))
		err := telemetry.NewClient(srv.URL, srv.Client()).ReportPendingEvents(t.Context(), telemetry.PendingEvents{Source: "lb-eu-0", Events: []telemetry.Event{{ID: "1", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventLaunch, Message: "launched\nus-3"}}})
		srv.Close()
		if !accepted {
			if err == nil || len(log.pending) != 0 {
				t.Errorf("%s: got %v, %+v", certified, err, log.pending)
			}
			continue
		}
		if err != nil || len(log.recorded) != 0 || len(log.pending) != 1 || log.pending[0].Source != "lb-eu-0" || log.pending[0].Events[0].Actor != telemetry.ActorAutoscaler || log.pending[0].Events[0].Message != "launched us-3" {
			t.Errorf("%s: got %v, %+v", certified, err, log)
		}
	}
}
