package proxy

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
)

// DecisionRecord is what became of one request and why: what explain shows.
type DecisionRecord struct {
	Request  string         `json:"request"`
	At       time.Time      `json:"at"` // when it arrived
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"` // the balancer's
	Model    string         `json:"model"`
	Tier     service.Tier   `json:"tier"`
	Tenant   string         `json:"tenant,omitempty"`
	// Session is a hash: of the prompt cache key, the session header, the user or
	// the client.
	Session string `json:"session,omitempty"`
	// PromptBytes is the rendered prompt's length, PromptEstimate what that is in
	// tokens as long as no engine has counted.
	PromptBytes    int      `json:"prompt_bytes"`
	PromptEstimate int      `json:"prompt_tokens_estimate"`
	From           string   `json:"from,omitempty"` // the peer that forwarded it here
	Hop            core.Hop `json:"hop,omitempty"`  // how far it had come
	// Kind, Target, Reason and Decision are the last try's.
	Kind     core.ActionKind `json:"kind"`
	Target   string          `json:"target,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Decision *core.Decision  `json:"decision"`
	// KeptFor is the replica that it waits for, as was decided when it came; empty
	// where it waits for any, or does not wait.
	KeptFor string `json:"kept_for,omitempty"`
	// Tries lists everything that was decided about it, oldest first.
	Tries []Try `json:"tries"`
	// State is queued, sent, finished, rejected, cancelled, bounced or failed.
	State string `json:"state"`
	// Status is what the client was answered, 0 while it was not.
	Status int `json:"status"`
	// TTFTMillis and E2EMillis count from arrival; null until known.
	TTFTMillis *float64 `json:"ttft_ms"`
	E2EMillis  *float64 `json:"e2e_ms"`
	// The tokens are the engine's figures, null where it gave none.
	PromptTokens *int `json:"prompt_tokens"`
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens *int `json:"output_tokens"`
}

// Try is one decision about a request and how it went on.
type Try struct {
	AtMillis float64         `json:"at_ms"` // since the request arrived
	Kind     core.ActionKind `json:"kind"`
	Target   string          `json:"target,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Decision *core.Decision  `json:"decision,omitempty"`
	// KeptFor is the replica that it had waited for until then.
	KeptFor string `json:"kept_for,omitempty"`
	// Engines are those of core.Action: who died, of a request that was rejected for it.
	Engines []string `json:"engines,omitempty"`
	// Failure says why it had to be tried again, empty when it had not; EndedMillis
	// when that was known, since the request arrived, null likewise.
	Failure     string   `json:"failure,omitempty"`
	EndedMillis *float64 `json:"ended_ms,omitempty"`
}

// failed notes how the latest try ended, at an elapsed time since the request
// arrived.
func (d *DecisionRecord) failed(cause string, at time.Duration) {
	if n := len(d.Tries); n > 0 {
		ended := millis(at)
		d.Tries[n-1].Failure, d.Tries[n-1].EndedMillis = cause, &ended
	}
}

// States of a DecisionRecord.
const (
	stateQueued    = "queued"
	stateSent      = "sent"
	stateFinished  = "finished"
	stateRejected  = "rejected"
	stateCancelled = "cancelled"
	stateBounced   = "bounced"
	stateFailed    = "failed"

	// outcomeRefused is how a request ended that core never heard of.
	outcomeRefused = "refused"
)

// snapshot is a copy that later changes do not reach. Decisions are shared:
// they never change.
func (d *DecisionRecord) snapshot() DecisionRecord {
	c := *d
	c.Tries = append([]Try(nil), d.Tries...)
	return c
}

// ring remembers the last requests, oldest overwritten first. It is guarded by
// the runtime's lock.
type ring struct {
	slots []*DecisionRecord
	next  int
	byID  map[string]*DecisionRecord
}

func newRing(n int) ring {
	return ring{slots: make([]*DecisionRecord, n), byID: make(map[string]*DecisionRecord)}
}

func (g *ring) add(d *DecisionRecord) {
	if old := g.slots[g.next]; old != nil && g.byID[old.Request] == old {
		delete(g.byID, old.Request)
	}
	g.slots[g.next] = d
	g.byID[d.Request] = d
	g.next = (g.next + 1) % len(g.slots)
}

// oldest is the entry that is overwritten next, nil when there is none at all.
func (g *ring) oldest() *DecisionRecord {
	if d := g.slots[g.next]; d != nil {
		return d
	}
	return g.slots[0]
}

// Remembered says which decisions this balancer can still tell of.
func (r *Runtime) Remembered() telemetry.DecisionMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := telemetry.DecisionMemory{Balancer: r.self.ID, Region: r.self.Region, Remembered: len(r.ring.byID), Limit: len(r.ring.slots)}
	if d := r.ring.oldest(); d != nil {
		since := d.At
		m.Since = &since
	}
	return m
}

// Decision is what became of a request, while it is remembered.
func (r *Runtime) Decision(id string) (DecisionRecord, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.ring.byID[id]
	if d == nil {
		return DecisionRecord{}, false
	}
	return d.snapshot(), true
}

// subscribers hands decisions to whoever watches.
type subscribers struct {
	count   atomic.Int32
	mu      sync.Mutex
	chans   map[chan json.RawMessage]struct{}
	dropped atomic.Int64
}

func (s *subscribers) any() bool { return s.count.Load() > 0 }

// Subscribe gives every decision as it is made, a DecisionRecord in JSON each.
// A reader that falls behind misses some (counted in
// skyserve_events_dropped_total). cancel ends it and closes the channel.
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

// publish sends what was decided to every subscriber that has room.
func (s *subscribers) publish(made []DecisionRecord) {
	for i := range made {
		line, err := json.Marshal(&made[i])
		if err != nil {
			s.dropped.Add(1)
			continue
		}
		s.send(line)
	}
}

func (s *subscribers) send(line json.RawMessage) {
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
