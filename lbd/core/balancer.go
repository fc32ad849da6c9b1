package core

import (
	"fmt"
	"sort"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// request is a request in flight.
type request struct {
	Request
	seq     uint64
	arrived time.Duration
	sentAt  time.Duration
	target  *target // nil while queued
	tries   int
	// avoid lists the ids of targets that failed or bounced it.
	avoid []string
	// What it was expected to cost its target when it was sent, in tokens.
	promptCost int
	answerCost int
	prefilled  bool // a first token came back
}

// Counts is where every request went. Arrived equals the sum of the others.
type Counts struct {
	Arrived     int64 `json:"arrived"`
	Finished    int64 `json:"finished"`
	Rejected    int64 `json:"rejected"`
	Cancelled   int64 `json:"cancelled"`
	Bounced     int64 `json:"bounced"`
	Queued      int   `json:"queued"`
	Outstanding int   `json:"outstanding"`
	// ForwardedOut and ForwardedIn count requests, not part of the sum.
	ForwardedOut int64 `json:"forwarded_out"`
	ForwardedIn  int64 `json:"forwarded_in"`
}

// Balancer decides for one balancer process. It is not safe for concurrent use.
type Balancer struct {
	cfg      Config
	regional bool // the policy sees the peers at all times
	requests map[string]*request
	queues   []*queue // sorted by model
	queued   int
	replicas []*target // sorted by id
	peers    []*target // sorted by id
	// Two trees (SkyLB 3.2): what the replicas hold, and a snapshot of the peers
	// made of what was forwarded to them.
	replicaTree *prefix.Tree
	peerTree    *prefix.Tree
	slots       [2]slots
	seq         uint64
	counts      Counts

	actions    []Action
	decisions  []Decision
	candidates []policy.Candidate
	targets    []*target
	matches    []int
}

// New makes a balancer without replicas, peers or requests.
func New(cfg Config) *Balancer {
	return &Balancer{
		cfg:         cfg,
		requests:    map[string]*request{},
		replicaTree: prefix.NewTreeInOrder(cfg.TreeBytes, cfg.TreeOrder),
		peerTree:    prefix.NewTreeInOrder(cfg.TreeBytes, cfg.TreeOrder),
		regional:    policy.ChoosesRegion(cfg.Policy),
	}
}

// slots hands out the small integers that the trees know targets by.
type slots struct {
	free []int
	next int
}

func (s *slots) take() int {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.next++
	return s.next - 1
}

func (s *slots) give(slot int) { s.free = append(s.free, slot) }

// Step takes one event at a time that never goes back and returns what to do,
// in order. The actions are valid until the next Step. An event that names
// something unknown (a request that ended, a replica that was removed) does
// nothing: sockets report late.
func (b *Balancer) Step(now time.Duration, ev Event) []Action {
	b.actions, b.decisions = b.actions[:0], b.decisions[:0]
	switch ev.Kind {
	case EventArrived:
		b.arrive(now, ev.Request)
	case EventFirstToken:
		if r := b.requests[ev.ID]; r != nil && r.target != nil {
			r.target.confirm(r)
			r.target.work.firstToken(r)
			b.drainFor(now, r)
		}
	case EventProgress:
		if t := find(b.replicas, ev.Target); t != nil {
			t.tokens += int64(ev.Tokens)
			t.work.progress(ev.Tokens)
		}
	case EventFinished:
		b.finish(now, ev.ID, ev.Outcome)
	case EventFailed:
		b.fail(now, ev.ID, ev.Outcome)
	case EventCancelled:
		b.cancel(now, ev.ID)
	case EventBounced:
		b.bounced(now, ev.ID)
	case EventTick:
		b.tick(now)
	default:
		b.stepTargets(now, ev)
	}
	return b.actions
}

func (b *Balancer) stepTargets(now time.Duration, ev Event) {
	switch ev.Kind {
	case EventReplicaAdded:
		b.addReplica(now, ev.Replica)
	case EventReplicaRemoved:
		b.removeReplica(now, ev.Target)
	case EventReplicaDraining:
		if t := find(b.replicas, ev.Target); t != nil {
			t.draining = true
			b.bounceStranded(now)
		}
	case EventReplicaReport:
		b.replicaReport(now, ev.Target, ev.Report)
	case EventPeerAdded:
		b.addPeer(ev.Peer)
	case EventPeerRemoved:
		b.removePeer(now, ev.Target)
	case EventPeerReport:
		b.peerReport(now, ev.Target, ev.PeerReport)
	default:
		panic(fmt.Sprintf("core: unknown event kind %q", ev.Kind))
	}
}

func (b *Balancer) act(a Action) { b.actions = append(b.actions, a) }

func (b *Balancer) arrive(now time.Duration, in *Request) {
	b.counts.Arrived++
	if in.From != "" {
		b.counts.ForwardedIn++
	}
	if _, dup := b.requests[in.ID]; dup {
		b.counts.Rejected++
		b.act(Action{Kind: ActionReject, ID: in.ID, Reason: RejectDuplicate})
		return
	}
	b.seq++
	r := &request{Request: *in, seq: b.seq, arrived: now}
	b.requests[r.ID] = r
	switch {
	case r.From != "" && !b.servedHere(now, r.Model):
		b.bounce(r)
	case !b.known(r.Model):
		b.reject(r, RejectNoReplica)
	case b.queued >= b.cfg.QueueLimit:
		b.reject(r, RejectQueueFull)
	default:
		q := b.enqueue(r)
		b.drain(now, q)
		if r.target == nil {
			b.act(Action{Kind: ActionHold, ID: r.ID})
		}
	}
}

// finish ends a request that was served.
func (b *Balancer) finish(now time.Duration, id string, out *Outcome) {
	r := b.requests[id]
	if r == nil || r.target == nil {
		return
	}
	t := b.leave(r, out)
	if out != nil && out.OutputTokens.Known {
		b.queue(r.Model).answers.ended(max(0, out.OutputTokens.Value))
	}
	if out != nil && len(out.Key) > len(r.Prompt) && t.slot >= 0 {
		b.tree(t).Insert(out.Key, t.slot)
	}
	b.counts.Finished++
	delete(b.requests, id)
	b.drainFor(now, r)
}

// fail handles a request that its target did not serve: elsewhere if that can
// still be done unseen, else it ends.
func (b *Balancer) fail(now time.Duration, id string, out *Outcome) {
	r := b.requests[id]
	if r == nil || r.target == nil {
		return
	}
	t := b.leave(r, out)
	if out != nil && out.Unreachable {
		t.suspect = true
		b.forget(t)
	}
	r.avoid = append(r.avoid, t.id)
	switch {
	case out == nil || !out.Retryable:
		b.reject(r, RejectFailed)
	case r.tries >= b.cfg.MaxTries:
		b.reject(r, RejectTooManyTry)
	default:
		b.requeue(now, r)
	}
	b.bounceStranded(now)
	b.drainFor(now, r)
}

// bounced takes back a request that a peer could not place.
func (b *Balancer) bounced(now time.Duration, id string) {
	r := b.requests[id]
	if r == nil || r.target == nil || !r.target.peer {
		return
	}
	t := b.leave(r, nil)
	t.pausedUntil = now + b.cfg.PeerPause
	r.tries-- // the peer never tried
	b.requeue(now, r)
	b.drainFor(now, r)
}

// requeue puts a request back at its old place.
func (b *Balancer) requeue(now time.Duration, r *request) {
	if r.From != "" && !b.servedHere(now, r.Model) {
		b.bounce(r)
		return
	}
	b.enqueue(r)
}

// startOver allows a request everything again when nothing that it does not
// avoid answers: a replica that failed once is better than none.
func (b *Balancer) startOver(now time.Duration, r *request) {
	if len(r.avoid) > 0 && !b.anyLeft(now, r) {
		r.avoid = r.avoid[:0]
	}
}

// anyLeft says whether some target that r does not avoid answers and could take
// it, if not at once then after a wait.
func (b *Balancer) anyLeft(now time.Duration, r *request) bool {
	for _, t := range b.replicas {
		if t.model == r.Model && !t.draining && t.live(now, &b.cfg) && !r.avoids(t.id) {
			return true
		}
	}
	for _, t := range b.peers {
		if b.mayForward(r, t) && t.load(r.Model) != nil && t.live(now, &b.cfg) && !r.avoids(t.id) {
			return true
		}
	}
	return false
}

func (r *request) avoids(id string) bool {
	for _, a := range r.avoid {
		if a == id {
			return true
		}
	}
	return false
}

// cancel ends a request whose client has gone.
func (b *Balancer) cancel(now time.Duration, id string) {
	r := b.requests[id]
	if r == nil {
		return
	}
	if r.target != nil {
		t := b.leave(r, nil)
		b.act(Action{Kind: ActionAbort, ID: id, Target: t.id})
	} else {
		b.dequeue(r)
	}
	b.counts.Cancelled++
	delete(b.requests, id)
	b.drainFor(now, r)
}

// leave takes r off its target; out tells how it ended there, if anything does.
func (b *Balancer) leave(r *request, out *Outcome) *target {
	t := r.target
	t.confirm(r)
	t.outstanding--
	t.work.take(r, out, t.outstanding == 0)
	b.counts.Outstanding--
	r.target = nil
	return t
}

// reject ends a request with a reason; it must not be in a queue.
func (b *Balancer) reject(r *request, reason string) {
	b.counts.Rejected++
	delete(b.requests, r.ID)
	b.act(Action{Kind: ActionReject, ID: r.ID, Reason: reason})
}

// bounce gives a forwarded request back; it must not be in a queue.
func (b *Balancer) bounce(r *request) {
	b.counts.Bounced++
	delete(b.requests, r.ID)
	b.act(Action{Kind: ActionBounce, ID: r.ID, Target: r.From})
}

func (b *Balancer) enqueue(r *request) *queue {
	q := b.queue(r.Model)
	q.push(r)
	b.queued++
	return q
}

func (b *Balancer) dequeue(r *request) {
	b.queue(r.Model).remove(r)
	b.queued--
}

// queue is the queue of a model, made when needed.
func (b *Balancer) queue(model string) *queue {
	i := sort.Search(len(b.queues), func(i int) bool { return b.queues[i].model >= model })
	if i < len(b.queues) && b.queues[i].model == model {
		return b.queues[i]
	}
	b.queues = append(b.queues, nil)
	copy(b.queues[i+1:], b.queues[i:])
	b.queues[i] = &queue{model: model}
	return b.queues[i]
}

// tick lets time pass: what waited too long ends, and what time alone makes
// available again is used.
func (b *Balancer) tick(now time.Duration) {
	b.forgetLost(now)
	b.bounceStranded(now)
	for _, q := range b.queues {
		for i := q.head; i < len(q.items); {
			r := q.items[i]
			if now-r.arrived < b.maxWait(r) {
				i++
				continue
			}
			q.removeAt(i)
			i = max(i, q.head)
			b.queued--
			b.reject(r, RejectWait)
		}
	}
	b.drainAll(now)
}

func (b *Balancer) maxWait(r *request) time.Duration {
	if r.Wait > 0 {
		return min(r.Wait, b.cfg.MaxWait)
	}
	return b.cfg.MaxWait
}
