package proxy

import (
	"encoding/json"
	"sync"
	"sync/atomic"

	"skyserve/internal/telemetry"
	"skyserve/lbd/record"
)

// outcomeRefused is the outcome of a request that never reached core.
const outcomeRefused = "refused"

// ring stores the latest requests; the oldest is overwritten first. It is guarded by the runtime's
// lock.
type ring struct {
	slots []*record.RequestRecord
	next  int
	byID  map[string]*record.RequestRecord
}

func newRing(n int) ring {
	return ring{slots: make([]*record.RequestRecord, n), byID: make(map[string]*record.RequestRecord)}
}

func (g *ring) addRecord(d *record.RequestRecord) {
	if old := g.slots[g.next]; old != nil && g.byID[old.Request] == old {
		delete(g.byID, old.Request)
	}
	g.slots[g.next] = d
	g.byID[d.Request] = d
	g.next = (g.next + 1) % len(g.slots)
}

// oldest returns the oldest entry, nil when the ring is empty.
func (g *ring) oldest() *record.RequestRecord {
	if d := g.slots[g.next]; d != nil {
		return d
	}
	return g.slots[0]
}

// DecisionMemory returns the number of requests whose decisions this balancer stores, and the time of the
// oldest request.
func (r *Runtime) DecisionMemory() telemetry.DecisionMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := telemetry.DecisionMemory{Balancer: r.self.ID, Region: r.self.Region, Recorded: len(r.ring.byID), Limit: len(r.ring.slots)}
	if d := r.ring.oldest(); d != nil {
		since := d.At
		m.Since = &since
	}
	return m
}

// Decision returns the request record of a request, if it is still stored: the request and the decisions about it.
func (r *Runtime) Decision(id string) (record.RequestRecord, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.ring.byID[id]
	if d == nil {
		return record.RequestRecord{}, false
	}
	return d.Snapshot(), true
}

// subscribers sends request records to all subscribers.
type subscribers struct {
	count   atomic.Int32
	mu      sync.Mutex
	chans   map[chan json.RawMessage]struct{}
	dropped atomic.Int64
}

func (s *subscribers) hasAny() bool { return s.count.Load() > 0 }

// Subscribe returns a channel that receives, after every decision, the record.RequestRecord of its request
// in JSON. A reader that is too slow misses some (counted in skyserve_events_dropped_total). cancel ends the subscription and closes the channel.
func (r *Runtime) Subscribe() (events <-chan json.RawMessage, cancel func()) {
	ch := make(chan json.RawMessage, r.limits.SubscriberBuffer)
	s := &r.subs
	s.mu.Lock()
	if s.chans == nil {
		s.chans = map[chan json.RawMessage]struct{}{}
	}
	s.chans[ch] = struct{}{}
	s.count.Add(1)
	s.mu.Unlock()
	return ch, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.chans, ch)
		s.count.Add(-1)
		close(ch)
	})
}

// publish sends request records to every subscriber whose buffer is not full.
func (s *subscribers) publish(records []record.RequestRecord) {
	for i := range records {
		line, err := json.Marshal(&records[i])
		if err != nil {
			s.dropped.Add(1)
			continue
		}
		s.sendLine(line)
	}
}

func (s *subscribers) sendLine(line json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.chans {
		select {
		case ch <- line:
		default:
			s.dropped.Add(1)
		}
	}
}
