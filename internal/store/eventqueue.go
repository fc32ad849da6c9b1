package store

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
)

// Limits of an EventQueue, each with its reason.
const (
	// maxQueuedEvents limits the events that wait for the store: hours of a busy service, at most a few
	// MB. The oldest are dropped first.
	maxQueuedEvents = 2000
	// eventRetryMin and eventRetryMax limit the backoff while the store is unavailable.
	eventRetryMin = 100 * time.Millisecond
	eventRetryMax = 5 * time.Second
	// eventFlushTimeout is the timeout for the last events at shutdown.
	eventFlushTimeout = time.Second
	// statesWindow is how far back events are read to find the last states of objects: see RecordState.
	statesWindow = 7 * 24 * time.Hour
)

// EventStore stores events; Store implements it.
type EventStore interface {
	AppendEvent(ctx context.Context, e telemetry.Event) error
	ReadEvents(ctx context.Context, q telemetry.EventQuery) ([]telemetry.Event, error)
}

// EventQueue stores the events of one process in their order. Record never blocks: events wait in
// memory while the store is unavailable. It is safe for concurrent use.
type EventQueue struct {
	store  EventStore
	source string
	self   telemetry.Event
	log    *slog.Logger
	wake   chan struct{}

	states map[string]telemetry.EventKind // the last recorded state of each object, used by Run only; nil = not read from the store yet

	mu       sync.Mutex
	queued   []queuedEvent
	removed  int64 // the number of events removed from the front of queued, stored or dropped
	sequence int64
	recorded map[telemetry.EventKind]int64
	dropped  int64
	lost     int64         // dropped since the last event about dropped events
	shorter  chan struct{} // closed, and replaced, when an event is removed from queued
}

// NewEventQueue returns a queue. source identifies the process in the IDs of events; it must differ
// between processes and between runs of a process. self contains the actor, region and object of the
// queue's own events, which are about dropped ones.
func NewEventQueue(st EventStore, source string, self telemetry.Event, log *slog.Logger) *EventQueue {
	return &EventQueue{store: st, source: source, self: self, log: log, wake: make(chan struct{}, 1), shorter: make(chan struct{}), recorded: map[telemetry.EventKind]int64{}}
}

// queuedEvent is an event that waits for the store.
type queuedEvent struct {
	telemetry.Event
	state bool // see RecordState
}

// Record queues an event. It sets At and ID unless the caller has set them. The caller must set ID if several processes
// can record the event: the store keeps only one event of an ID.
func (q *EventQueue) Record(e telemetry.Event) { q.enqueue(queuedEvent{Event: e}) }

// RecordState queues an event about the state of its object. The event is not stored if the last event of the object
// about its state (see keepState) has the same kind: a new leader observes states again that are already recorded. To
// know the last states, the queue reads the events of statesWindow from the store, at most telemetry.MaxEvents: once, and
// again after this process became the leader.
func (q *EventQueue) RecordState(e telemetry.Event) { q.enqueue(queuedEvent{e, true}) }

func (q *EventQueue) enqueue(e queuedEvent) {
	q.mu.Lock()
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if q.sequence++; e.ID == "" {
		e.ID = fmt.Sprintf("%s-%d", q.source, q.sequence)
	}
	e.Event = e.Clean()
	q.queued = append(q.queued, e)
	if extra := len(q.queued) - maxQueuedEvents; extra > 0 {
		q.queued = slices.Delete(q.queued, 0, extra)
		q.dropped, q.lost = q.dropped+int64(extra), q.lost+int64(extra)
		q.countRemoved(int64(extra))
	}
	q.recorded[countedKind(e.Kind)]++
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // Run will find it
	}
}

// countedKind returns the kind under which an event is counted, which bounds the number of counts.
func countedKind(k telemetry.EventKind) telemetry.EventKind {
	if slices.Contains(telemetry.EventKinds(), k) {
		return k
	}
	return "other"
}

// Pending returns the events that are not stored yet.
func (q *EventQueue) Pending() []telemetry.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := make([]telemetry.Event, len(q.queued))
	for i, e := range q.queued {
		events[i] = e.Event
	}
	return events
}

// Counts returns the number of recorded events by kind, and of those that were dropped because the
// store was unavailable for too long.
func (q *EventQueue) Counts() (recorded map[telemetry.EventKind]int64, dropped int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.recorded), q.dropped
}

// Run stores events until ctx ends. Then it tries for up to eventFlushTimeout to store those that remain.
func (q *EventQueue) Run(ctx context.Context) {
	for ctx.Err() == nil {
		q.flush(ctx)
		select {
		case <-ctx.Done():
		case <-q.wake:
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventFlushTimeout)
	defer cancel()
	q.flush(last)
	if n := len(q.Pending()); n > 0 {
		q.log.Warn("events were not stored before the shutdown", "events", n)
	}
}

// flush stores the queued events, and retries until ctx ends.
func (q *EventQueue) flush(ctx context.Context) {
	retry := eventRetryMin
	for {
		e, number, found := q.front()
		if !found {
			return
		}
		err := q.storeEvent(ctx, e)
		if err == nil {
			q.remove(number)
			retry = eventRetryMin
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if retry == eventRetryMin {
			q.log.Debug("storing an event failed, retrying", "err", err)
		}
		pause(ctx, nil, retry)
		retry = min(2*retry, eventRetryMax)
	}
}

// front returns the oldest queued event with its number. After a loss it is an event about the loss,
// whose number is negative.
func (q *EventQueue) front() (e queuedEvent, number int64, found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.lost > 0:
		e := q.self
		e.ID, e.At, e.Kind = fmt.Sprintf("%s-lost-%d", q.source, q.dropped), time.Now().UTC(), telemetry.EventLost
		e.Message, e.Reason = printable.Count(q.lost, "event")+" dropped", "the store was unavailable for too long"
		return queuedEvent{Event: e.Clean()}, -q.dropped, true
	case len(q.queued) > 0:
		return q.queued[0], q.removed, true
	}
	return e, 0, false
}

// remove removes a stored event, unless it was dropped meanwhile.
func (q *EventQueue) remove(number int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case number < 0:
		q.lost = q.dropped + number // those dropped since
	case number >= 0 && number == q.removed && len(q.queued) > 0:
		q.queued = slices.Delete(q.queued, 0, 1)
		q.countRemoved(1)
	}
}

// countRemoved counts events that were removed from the front of queued. The caller holds mu.
func (q *EventQueue) countRemoved(n int64) {
	q.removed += n
	close(q.shorter)
	q.shorter = make(chan struct{})
}

// WaitStored waits until the events that were recorded before are stored or dropped, or ctx ends.
func (q *EventQueue) WaitStored(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for last := q.removed + int64(len(q.queued)); q.removed < last && ctx.Err() == nil; {
		shorter := q.shorter
		q.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-shorter:
		}
		q.mu.Lock()
	}
}

// storeEvent stores an event, unless it repeats the state of its object.
func (q *EventQueue) storeEvent(ctx context.Context, e queuedEvent) error {
	if e.Kind == telemetry.EventLeader {
		q.states = nil // another leader may have recorded states meanwhile
	}
	if e.state && q.states == nil {
		events, err := q.store.ReadEvents(ctx, telemetry.EventQuery{Since: e.At.Add(-statesWindow)})
		if err != nil {
			return err
		}
		q.states = map[string]telemetry.EventKind{}
		for _, old := range events {
			q.keepState(old)
		}
	}
	if e.state && q.states[e.Object] == e.Kind {
		return nil
	}
	if err := q.store.AppendEvent(ctx, e.Event); err != nil {
		return err
	}
	q.keepState(e.Event)
	return nil
}

// keepState keeps the kind of an event as the last state of its object, if it is one of the kinds that report a state.
func (q *EventQueue) keepState(e telemetry.Event) {
	switch e.Kind {
	case telemetry.EventDeath, telemetry.EventRecovery, telemetry.EventLaunch, telemetry.EventReplace, telemetry.EventTermination:
		if q.states != nil {
			q.states[e.Object] = e.Kind
		}
	}
}
