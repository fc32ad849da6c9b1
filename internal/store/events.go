package store

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/telemetry"
)

// Limits of events, each with its reason.
const (
	// eventsMaxBytes is the size of 160,000 events of 400 bytes: 4,500 a day for 35 days. Events are kept as
	// long as points (pointsDays). The oldest events are dropped first.
	eventsMaxBytes = 64 << 20
	// eventsDuplicates is the time in which the server recognises a repeated event by its ID. Later ones are stored, and
	// telemetry.EventQuery.Select omits them.
	eventsDuplicates = time.Hour
	// followBacklog is the number of stored events that FollowEvents sends first.
	followBacklog = 1000
)

// AppendEvent stores an event durably. An event with the ID of one that was stored in the last hour (eventsDuplicates) is
// not stored again, so that it can be appended again after ErrUnavailable.
func (s *Store) AppendEvent(ctx context.Context, e telemetry.Event) error {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	day := e.At.Unix() / (60 * minutesPerDay)
	stream, js, err := s.eventStream(octx)
	if err == nil {
		var data []byte
		if data, err = json.Marshal(e); err == nil {
			_, err = js.Publish(octx, s.eventSubject(day), data, jetstream.WithMsgID(e.ID))
		}
	}
	s.recordResult(&s.writeOutage, err)
	if err == nil {
		s.dropOldEvents(octx, stream, day)
	}
	return wrap(ctx, err, "appending event %s", e.ID)
}

// dropOldEvents removes the expired days of events: see dropOldPoints.
func (s *Store) dropOldEvents(ctx context.Context, stream jetstream.Stream, day int64) {
	s.mu.Lock()
	due := day > s.eventsCleanupDay
	s.eventsCleanupDay = max(day, s.eventsCleanupDay)
	s.mu.Unlock()
	if due {
		s.dropOldDays(ctx, stream, s.eventSubject)
	}
}

// eventSubject returns the subject of a day's events. It contains the day, so that readers can select days.
func (s *Store) eventSubject(day int64) string {
	return s.namespace + "_events." + strconv.FormatInt(day, 10)
}

// ReadEvents returns the selected events in the order of their time. It fails with ErrUnavailable.
// Events that cannot be decoded are skipped.
func (s *Store) ReadEvents(ctx context.Context, q telemetry.EventQuery) ([]telemetry.Event, error) {
	octx, cancel := context.WithTimeout(ctx, 4*opTimeout)
	defer cancel()
	events, err := s.readEvents(octx, q)
	s.recordResult(&s.readOutage, err)
	if err != nil {
		operation := "reading events"
		if !q.Since.IsZero() {
			operation += " since " + q.Since.UTC().Format(time.RFC3339)
		}
		return nil, wrap(ctx, err, "%s", operation)
	}
	return q.Select(events), nil
}

func (s *Store) readEvents(ctx context.Context, q telemetry.EventQuery) ([]telemetry.Event, error) {
	stream, _, err := s.eventStream(ctx)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return nil, err
	}
	var subjects []string
	messages := uint64(0)
	for _, d := range daysOf(info) {
		if d.number >= q.Since.Unix()/(60*minutesPerDay) {
			subjects, messages = append(subjects, s.eventSubject(d.number)), messages+d.messages
		}
	}
	if len(subjects) == 0 {
		return nil, nil
	}
	var events []telemetry.Event
	err = readMessages(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: subjects}, messages, func(data []byte) error {
		var e telemetry.Event
		if err := json.Unmarshal(data, &e); err != nil {
			s.log.Warn("decoding a stored event failed; it is skipped", "err", err)
		} else if q.Matches(e) {
			events = append(events, e)
		}
		if len(events) >= 2*q.Max() { // bounds the memory; the newest are at the end
			events = q.Select(events)
		}
		return nil
	})
	return events, err
}

// FollowEvents sends the last stored events (at most followBacklog, 1000), and then every new one, in the order
// in which they were stored. After an outage it continues with the events that were stored during it. It creates
// nothing in the store, and closes the channel when ctx ends, or seconds later if the store does not respond
// at that moment. Events that cannot be decoded are skipped. An ID may repeat: see eventsDuplicates.
func (s *Store) FollowEvents(ctx context.Context) <-chan telemetry.Event {
	out := make(chan telemetry.Event)
	go func() {
		defer close(out)
		f := eventFollower{s: s, out: out}
		for ctx.Err() == nil {
			f.session(ctx)
		}
	}()
	return out
}

// eventFollower is the state of FollowEvents across connections.
type eventFollower struct {
	s    *Store
	out  chan<- telemetry.Event
	next uint64 // the sequence number of the next event; 0 before the first session
}

// session follows until the current connection or ctx ends.
func (f *eventFollower) session(ctx context.Context) {
	_, ok, next := f.s.connectionState()
	if !ok {
		pause(ctx, next, time.Second)
		return
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	it, err := f.openEvents(sctx)
	if err != nil {
		pause(ctx, next, bucketRetry)
		return
	}
	// Next and Stop run in one goroutine: an iterator that is stopped while it creates its consumer again never ends.
	defer it.Stop()
	go func() {
		select {
		case <-sctx.Done():
		case <-next:
			cancel()
		}
	}()
	for {
		msg, err := it.Next(jetstream.NextContext(sctx))
		if err != nil {
			pause(ctx, next, watchRetry)
			return
		}
		if !f.send(ctx, msg) {
			return
		}
	}
}

// openEvents returns the events from f.next on. If the stream ends before f.next, because it was created again or a backup
// was restored, it returns the last followBacklog events, as at the first session.
func (f *eventFollower) openEvents(ctx context.Context) (jetstream.MessagesContext, error) {
	nc, err := f.s.conn()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	stream, err := js.Stream(octx, f.s.namespace+"_events")
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(octx)
	if err != nil {
		return nil, err
	}
	last := info.State.LastSeq
	if f.next == 0 || f.next > last+1 {
		f.next = last - min(last, followBacklog) + 1
	}
	cons, err := stream.OrderedConsumer(octx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: f.next,
		MaxResetAttempts: 1, // session tries again; further attempts of the consumer would not end with the context
	})
	if err != nil {
		return nil, err
	}
	return cons.Messages()
}

// send sends an event; false if ctx ended.
func (f *eventFollower) send(ctx context.Context, msg jetstream.Msg) bool {
	if meta, err := msg.Metadata(); err == nil {
		f.next = meta.Sequence.Stream + 1
	}
	var e telemetry.Event
	if err := json.Unmarshal(msg.Data(), &e); err != nil {
		f.s.log.Warn("decoding a stored event failed; it is skipped", "err", err)
		return true
	}
	select {
	case f.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// readMessages calls yield with the data of up to n messages of a stream, in their order. It ends at the
// first error of yield.
func readMessages(ctx context.Context, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, n uint64, yield func([]byte) error) error {
	cons, err := stream.OrderedConsumer(ctx, config)
	if err != nil {
		return err
	}
	it, err := cons.Messages()
	if err != nil {
		return err
	}
	defer it.Stop()
	for range n {
		msg, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if err := yield(msg.Data()); err != nil {
			return err
		}
		if meta, err := msg.Metadata(); err == nil && meta.NumPending == 0 {
			break // the oldest messages may have been removed since they were counted
		}
	}
	return nil
}

// eventStream opens the stream of events and creates it on first use.
func (s *Store) eventStream(ctx context.Context) (jetstream.Stream, jetstream.JetStream, error) {
	return s.openStream(ctx, &s.events, jetstream.StreamConfig{
		Name: s.namespace + "_events", Description: "skyserve: changes of the service",
		Subjects: []string{s.namespace + "_events.*"}, Storage: jetstream.FileStorage, Duplicates: eventsDuplicates,
		MaxBytes: eventsMaxBytes, Discard: jetstream.DiscardOld, // by size; dropOldEvents removes events by age
	})
}
