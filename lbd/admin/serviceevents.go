package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/telemetry"
)

// Bounds of requests about events, with reasons.
const (
	maxEventsBody  = 256 << 10       // a change of hundreds of machines
	maxPendingBody = 1 << 20         // telemetry.MaxPendingEvents of the maximum length
	eventsTimeout  = 8 * time.Second // of the query of the store
	storedTimeout  = 2 * time.Second // for storing a client's events: an election of the store, and less than clients wait
	unknownPerson  = "unknown"       // an operator without a certificate who states no name
	operatorPrefix = "operator:"
)

// EventLog records and reads the events of the service.
type EventLog interface {
	// Record queues an event; it never blocks.
	Record(e telemetry.Event)
	// WaitStored waits until the events that were recorded before are stored, or ctx ends.
	WaitStored(ctx context.Context)
	// ReceivePending replaces the events that wait for the store in another process. They are reported, and not stored: that
	// process stores them.
	ReceivePending(p telemetry.PendingEvents)
	// Report returns the selected events; those in memory if the store does not respond.
	Report(ctx context.Context, q telemetry.EventQuery) telemetry.EventReport
	// Recent returns the last n events in memory, oldest first.
	Recent(n int) []telemetry.Event
}

// actorKey is the key of the actor in a request's context.
type actorKey struct{}

// WithActor returns a request whose client is identified: telemetry.OperatorActor or
// telemetry.ActorController.
func WithActor(r *http.Request, actor string) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), actorKey{}, actor))
}

// actorOf returns who sent a request. A client without a certificate may state a name.
func actorOf(r *http.Request, stated string) string {
	if actor, known := r.Context().Value(actorKey{}).(string); known {
		return actor
	}
	if name := strings.TrimPrefix(stated, operatorPrefix); name != stated && name != "" {
		return stated
	}
	return telemetry.OperatorActor(unknownPerson)
}

// record records an event if events are recorded.
func (a *API) record(e telemetry.Event) {
	if a.opts.Events != nil {
		a.opts.Events.Record(e)
	}
}

// waitStored waits until a client's events are stored, so that 'skyserve events' after its command shows them. While the
// store is unavailable they stay queued.
func (a *API) waitStored(r *http.Request) {
	if a.opts.Events == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storedTimeout)
	defer cancel()
	a.opts.Events.WaitStored(ctx)
}

// recordManualChange records a change of a replica that a client made through this API.
func (a *API) recordManualChange(r *http.Request, kind telemetry.EventKind, id, message string) {
	a.record(telemetry.Event{
		Actor: actorOf(r, ""), Kind: kind, Region: a.opts.Self.Region, Object: id, Message: message,
		Reason: "requested through the admin API of " + a.opts.Self.ID,
	})
	a.waitStored(r)
}

// recentEvents returns the events of a snapshot.
func (a *API) recentEvents() []telemetry.Event {
	if a.opts.Events == nil {
		return []telemetry.Event{}
	}
	return append([]telemetry.Event{}, a.opts.Events.Recent(telemetry.SnapshotEvents)...)
}

// serveServiceEvents responds with the events from ?since= (RFC 3339) on, of the kinds ?kind=, in
// ?region=, at most ?limit=.
func (a *API) serveServiceEvents(w http.ResponseWriter, r *http.Request) {
	q, err := eventQuery(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if a.opts.Events == nil {
		writeNoStore(w, "this balancer has no store, so it has no events: set store_url in its configuration or --store, or run the service with 'skyserve up'")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), eventsTimeout)
	defer cancel()
	report := a.opts.Events.Report(ctx, q)
	report.Events = append([]telemetry.Event{}, report.Events...)
	writeJSON(w, http.StatusOK, report)
}

// eventQuery parses the query of a request.
func eventQuery(r *http.Request) (q telemetry.EventQuery, err error) {
	values := r.URL.Query()
	if text := values.Get("since"); text != "" {
		if q.Since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return q, fmt.Errorf("since must be a time such as 2026-11-24T12:00:00Z, got %s", quoteClipped(text))
		}
	}
	if text := values.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > telemetry.MaxEvents {
			return q, fmt.Errorf("limit must be from 1 to %d, got %s", telemetry.MaxEvents, quoteClipped(text))
		}
	}
	for _, kind := range values["kind"] {
		q.Kinds = append(q.Kinds, telemetry.EventKind(kind))
	}
	q.Region = values.Get("region")
	return q, nil
}

// recordEvents records the events of a client. Their actor is the name in its certificate.
func (a *API) recordEvents(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(deadlineAfter(bodyTimeout)) // as in ServeHTTP
	var body struct {
		Events []telemetry.Event `json:"events"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxEventsBody)).Decode(&body); err != nil {
		writeError(w, http.StatusBadRequest, "reading the events: "+err.Error())
		return
	}
	for i, e := range body.Events {
		if err := e.Validate(); err != nil {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("reading the events: events[%d]: %v", i, err))
			return
		}
	}
	if a.opts.Events == nil {
		writeNoStore(w, "this balancer has no store, so it records no events: set store_url in its configuration or --store, or run the service with 'skyserve up'")
		return
	}
	for _, e := range body.Events {
		e.Actor = actorOf(r, e.Actor)
		a.record(e)
	}
	a.waitStored(r)
	writeJSON(w, http.StatusAccepted, map[string]any{"recorded": len(body.Events)})
}

// receivePending receives the events that wait for the store in a controller.
func (a *API) receivePending(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(deadlineAfter(bodyTimeout)) // as in ServeHTTP
	if actor, known := r.Context().Value(actorKey{}).(string); known && actor != telemetry.ActorController {
		writeError(w, http.StatusForbidden, "only controllers report pending events; record an event with POST /v1/service/events")
		return
	}
	var p telemetry.PendingEvents
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPendingBody)).Decode(&p); err != nil {
		writeError(w, http.StatusBadRequest, "reading the pending events: "+err.Error())
		return
	}
	if p.Source == "" || len(p.Events) > telemetry.MaxPendingEvents {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("reading the pending events: source is required, with at most %d events, got source %s with %d", telemetry.MaxPendingEvents, quoteClipped(p.Source), len(p.Events)))
		return
	}
	if a.opts.Events == nil {
		writeNoStore(w, "this balancer has no store, so it reports no events")
		return
	}
	for i, e := range p.Events {
		p.Events[i] = e.Clean()
	}
	a.opts.Events.ReceivePending(p)
	writeJSON(w, http.StatusOK, map[string]any{"received": len(p.Events)})
}
