package lbd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/lbd/admin"
)

// maxRecentEvents is the number of events, about one MB, to which those in memory are reduced once there
// are twice as many. A balancer shows them while the store is unavailable.
const maxRecentEvents = 1000

// maxPendingSources is the number of processes whose pending events a balancer keeps: more than a service has controllers.
const maxPendingSources = 16

// serviceEvents are the events of the service: those in the store, the last ones in memory, those that this balancer
// records, and those that wait for the store in controllers.
type serviceEvents struct {
	store store.EventStore
	queue *store.EventQueue

	mu      sync.Mutex
	recent  []telemetry.Event          // as stored, oldest first
	pending map[string]receivedPending // by source
}

// receivedPending are events that wait for the store in another process, and when it last reported them.
type receivedPending struct {
	events []telemetry.Event
	at     time.Time
}

var _ admin.EventLog = (*serviceEvents)(nil)

// newServiceEvents returns the events in a store, to which b adds its own.
func newServiceEvents(st store.EventStore, b *balancer, started time.Time) *serviceEvents {
	self := telemetry.Event{Actor: telemetry.ActorBalancer, Region: b.cfg.Region, Object: b.cfg.ID}
	return &serviceEvents{store: st, queue: store.NewEventQueue(st, b.cfg.ID+"-"+strconv.FormatInt(started.UnixNano(), 36), self, b.log)}
}

// follow keeps the last events of a channel in memory until it is closed.
func (s *serviceEvents) follow(events <-chan telemetry.Event) {
	for e := range events {
		s.mu.Lock()
		s.recent = append(s.recent, e)
		if len(s.recent) >= 2*maxRecentEvents {
			s.recent = slices.Clone(s.recent[len(s.recent)-maxRecentEvents:])
		}
		s.mu.Unlock()
	}
}

// Record implements admin.EventLog.
func (s *serviceEvents) Record(e telemetry.Event) { s.queue.Record(e) }

// WaitStored implements admin.EventLog.
func (s *serviceEvents) WaitStored(ctx context.Context) { s.queue.WaitStored(ctx) }

// ReceivePending implements admin.EventLog.
func (s *serviceEvents) ReceivePending(p telemetry.PendingEvents) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		s.pending = map[string]receivedPending{}
	}
	s.dropOldPending()
	if _, known := s.pending[p.Source]; known || len(s.pending) < maxPendingSources {
		s.pending[p.Source] = receivedPending{p.Events, time.Now()}
	}
}

// dropOldPending removes the events of processes that no longer report them: they are stored, or lost with their process.
// The caller holds mu.
func (s *serviceEvents) dropOldPending() {
	maps.DeleteFunc(s.pending, func(_ string, r receivedPending) bool { return time.Since(r.at) >= telemetry.PendingTTL })
}

// allPending returns the events that wait for the store, in this process and in others.
func (s *serviceEvents) allPending() []telemetry.Event {
	events := s.queue.Pending()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropOldPending()
	for _, source := range slices.Sorted(maps.Keys(s.pending)) {
		events = append(events, s.pending[source].events...)
	}
	return events
}

// Recent implements admin.EventLog. It includes events that wait for the store.
func (s *serviceEvents) Recent(n int) []telemetry.Event {
	return s.inMemory(telemetry.EventQuery{Limit: n})
}

func (s *serviceEvents) inMemory(q telemetry.EventQuery) []telemetry.Event {
	pending := s.allPending() // first: an event may be stored meanwhile
	s.mu.Lock()
	defer s.mu.Unlock()
	return q.Select(slices.Concat(s.recent, pending))
}

// Report implements admin.EventLog.
func (s *serviceEvents) Report(ctx context.Context, q telemetry.EventQuery) telemetry.EventReport {
	pending := s.allPending() // first: an event may be stored meanwhile
	events, err := s.store.ReadEvents(ctx, q)
	if err != nil {
		return telemetry.EventReport{Problem: err.Error(), Events: s.inMemory(q)}
	}
	return telemetry.EventReport{Complete: true, Events: q.Select(append(events, pending...))}
}

// recordEvent records an event of this balancer, if events are recorded.
func (b *balancer) recordEvent(kind telemetry.EventKind, message, reason string) {
	if b.events != nil {
		b.events.Record(telemetry.Event{Actor: telemetry.ActorBalancer, Kind: kind, Region: b.cfg.Region, Object: b.cfg.ID, Message: message, Reason: reason})
	}
}

// eventLog returns the events for the admin API; nil without a store.
func (b *balancer) eventLog() admin.EventLog {
	if b.events == nil {
		return nil
	}
	return b.events
}

// backupStore returns the store for the admin API; nil without one.
func (b *balancer) backupStore() admin.BackupStore {
	if b.store == nil {
		return nil
	}
	return b.store
}

// recordReload records a reload with the keys that changed. It contains no values: they may be secrets.
// The controller records changes of replicas.
func (b *balancer) recordReload(r telemetry.Reload) {
	for _, g := range reloadGroups(r.Changed) {
		b.recordEvent(g.kind, fmt.Sprintf("%s reloaded its configuration: %s", b.cfg.ID, strings.Join(g.keys, ", ")), "its configuration file or a file to which it refers has changed")
	}
}

// reloadGroup are changed keys with one kind of event.
type reloadGroup struct {
	kind telemetry.EventKind
	keys []string
}

// reloadGroups returns the keys of changes by kind of event, without their values.
func reloadGroups(changes []string) (groups []reloadGroup) {
	for _, kind := range []telemetry.EventKind{telemetry.EventReload, telemetry.EventKeys, telemetry.EventCertificate} {
		g := reloadGroup{kind: kind}
		for _, c := range changes {
			if key, of := changedKey(c); of == kind && !slices.Contains(g.keys, key) {
				g.keys = append(g.keys, key)
			}
		}
		if len(g.keys) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// changedKey returns the key of one line of telemetry.Reload.Changed, and the kind of its event; an
// empty kind for a change that has an event of its own.
func changedKey(change string) (key string, kind telemetry.EventKind) {
	key, rest, _ := strings.Cut(change, ":")
	switch {
	case strings.HasPrefix(key, "balancer.auth"):
		return key, telemetry.EventKeys
	case key == "balancer.tls":
		return key, telemetry.EventCertificate
	case key == "replicas" && strings.HasSuffix(rest, ": the API key"):
		return change, telemetry.EventKeys // the ID of the replica, and no key
	case key == "replicas":
		return "", ""
	}
	return key, telemetry.EventReload
}

// certificateActor returns the actor of a client with a certificate.
func certificateActor(client identity.Name) string {
	if client.Role == identity.Operator {
		return telemetry.OperatorActor(client.ID)
	}
	return string(client.Role)
}
