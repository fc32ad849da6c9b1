package core

import (
	"fmt"
	"sort"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core/breaker"
	"skyserve/lbd/core/fair"
	"skyserve/lbd/core/pace"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// request is the state of a request that has not ended.
type request struct {
	Request
	fair.Item[request]
	poolState
	suspicion
	minCharge    int64         // tokens charged for failed attempts: the minimum charge of a request that is not served
	receivedAt   time.Duration // when it arrived; Item.WaitingSince is the start of the client's wait: receivedAt, or the time when its stream broke
	sessionStart time.Duration // start of its session
	sentAt       time.Duration
	target       *target // nil while queued
	attempts     int
	// The numbers of unconfirmed and of outstanding requests at its target when it was sent, including itself.
	unconfirmedAtSend, outstandingAtSend int
	// avoid lists the ids of the engines and peers at which the request failed in this round. retryRounds counts
	// the earlier rounds, in which it failed at every target. failedAt is the time of the last failure.
	avoid       []string
	refusals    []refusal // in this round: see Outcome.Refused
	retryRounds int
	failedAt    time.Duration
	// waitsFor is the replica that the request is held for; nil if it waits for any target.
	waitsFor *target
	// heldInRound is the queue's holdRound in which the request was counted in waitsFor.heldRequests.
	heldInRound int
	// nextSortTime is its sort time (Item.SortTime) after its queue is reordered.
	nextSortTime time.Duration
	evaluated    bool // since it was queued; only for a policy that holds requests
	// Tokens expected at its target when it was sent: the part of the prompt that the target has not cached and must
	// compute; the whole prompt; the answer.
	uncached       int
	expectedPrompt int
	expectedAnswer int
	// matchAtSend is the number of bytes of its prompt that its target was expected to have cached. prefillExpectedBy is
	// when the target was expected to have computed the others. awaitsPrefill: see awaitsSharedPrefill.
	matchAtSend       int
	prefillExpectedBy time.Duration
	awaitsPrefill     bool
	// matchInProgress: uncached assumes a match with a prompt that the target may still have been computing.
	matchInProgress bool
	// superseded is how many of the matchAtSend bytes another replica had received later. Its target used them longer
	// ago and may have evicted them (policy.Candidate.SupersededBytes).
	superseded int
	// At the current or last target: the time of the first token, and the load at that time.
	firstTokenAt          time.Duration
	firstTokenOutstanding int
	firstTokenContext     int
	firstTokenBatch       *prefillBatch
	prefilled             bool // a first token arrived from that target
	firstTokenCounted     bool // its first token is included in the model's count
}

// Counts is the number of requests by result. Arrived equals the sum of the others.
type Counts struct {
	Arrived     int64 `json:"arrived"`
	Finished    int64 `json:"finished"`
	Rejected    int64 `json:"rejected"`
	Cancelled   int64 `json:"cancelled"`
	Bounced     int64 `json:"bounced"`
	Queued      int   `json:"queued"` // including parked requests
	Outstanding int   `json:"outstanding"`
	// ForwardedOut and ForwardedIn count requests too, but are not part of the sum.
	ForwardedOut int64 `json:"forwarded_out"`
	ForwardedIn  int64 `json:"forwarded_in"`
}

// Balancer makes the decisions of one balancer process. It is not safe for concurrent use.
type Balancer struct {
	cfg               Config
	traits            policy.Traits
	requests          map[string]*request
	queues            []*queue // sorted by model
	queued            int
	replicas          []*target // sorted by id
	peers             []*target // sorted by id
	caches            caches
	seq               uint64
	counts            Counts
	retries           breaker.Budget
	ejections         int64
	waitsForReport    bool             // a request may wait for the report of a peer: see awaitsReport
	retriesOverBudget int64            // retries rejected because the retry budget was exhausted
	hitRate           pace.Mean        // share of prompt tokens that engines found in their caches
	scratchPaces      []*pace.Estimate // scratch buffer of updatePaces

	actions         []Action
	decisions       []Decision
	candidates      []policy.Candidate
	targets         []*target // parallel to candidates
	firstPeer       int       // index of the first peer in candidates
	scratchRequests []*request
	freeRequests    []*request
	facts           policy.Facts
	pools           poolPlacement
	suspects        killSuspects
}

// New returns a balancer without replicas, peers or requests.
func New(cfg Config) *Balancer {
	b := &Balancer{
		cfg:      cfg,
		retries:  breaker.NewBudget(cfg.RetryBurst),
		requests: map[string]*request{},
		caches:   newCaches(&cfg),
		traits:   cfg.Policy.Traits(),
		pools:    newPoolPlacement(cfg.Policy),
	}
	b.addColdQueues(0)
	return b
}

// Step processes one event and returns the actions to perform, in order. now must never go
// backwards. The actions are valid until the next Step. Step ignores an event for an unknown
// request or target, such as a request that ended or a replica that was removed: events from
// sockets can be late.
func (b *Balancer) Step(now time.Duration, ev Event) []Action {
	b.actions, b.decisions = b.actions[:0], b.decisions[:0]
	switch ev.Kind {
	case EventArrived:
		b.handleArrived(now, ev.Request)
	case EventFirstToken:
		if r := b.requests[ev.ID]; r != nil && r.target != nil {
			r.target.confirm(r)
			r.target.starts.addFirstToken(now, r, &b.cfg)
			b.learnFromFirstToken(now, r)
			r.recordPrefill(now)
			b.markStreaming(r)
			r.recordFirstToken(now)
			b.queue(r.Model).countFirstToken(now, r)
			b.placeSameModel(now, r)
		}
	case EventProgress:
		if t := findTarget(b.replicas, ev.Target); t != nil {
			t.tokens += int64(ev.Tokens)
			t.work.addGenerated(ev.Tokens)
			t.recordTokens(ev.Tokens)
		}
	case EventFinished:
		b.handleFinished(now, ev.ID, ev.Outcome)
	case EventFailed:
		b.handleFailed(now, ev.ID, ev.Outcome)
	case EventCancelled:
		b.handleCancelled(now, ev.ID, ev.Outcome)
	case EventBounced:
		b.handleBounced(now, ev.ID, ev.Outcome)
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
		if t := findTarget(b.replicas, ev.Target); t != nil {
			t.draining = true
			b.bounceStranded(now)
		}
	case EventReplicaNames:
		b.setServedNames(now, ev.Target, ev.Names)
	case EventReplicaReport:
		b.handleReplicaReport(now, ev.Target, ev.Report)
	case EventPeerAdded:
		b.addPeer(now, ev.Peer)
	case EventPeerRemoved:
		b.removePeer(now, ev.Target)
	case EventPeerReport:
		b.handlePeerReport(now, ev.Target, ev.PeerReport)
	case EventPeerCacheUpdates:
		b.receiveCacheUpdates(now, ev.Target, ev.CacheUpdates)
	case EventCacheChanged:
		if t := findTarget(b.replicas, ev.Target); t != nil {
			b.caches.changeCache(now, &t.cacheTarget, ev.CacheChanges)
		}
	default:
		panic(fmt.Sprintf("core: unknown event kind %q", ev.Kind))
	}
}

func (b *Balancer) addAction(a Action) { b.actions = append(b.actions, a) }

func (b *Balancer) handleArrived(now time.Duration, in *Request) {
	b.counts.Arrived++
	b.retries.Earn(b.cfg.RetryShare, b.cfg.RetryBurst)
	if in.From != "" {
		b.counts.ForwardedIn++
	}
	if _, dup := b.requests[in.ID]; dup {
		b.counts.Rejected++
		b.addAction(Action{Kind: ActionReject, ID: in.ID, Reason: RejectDuplicate})
		return
	}
	b.seq++
	r := b.newRequest()
	r.Request, r.receivedAt = *in, now
	r.initItem(b.seq, now)
	r.SortTime = b.sortTime(r)
	b.findSuspect(r)
	b.requests[r.ID] = r
	known := b.modelKnown(r.Model)
	awaits := (!known || !b.adapterKnown(now, r)) && b.awaitsReport(now, r.Model)
	switch {
	case r.From != "" && !b.servedLocally(now, r):
		b.bounceRequest(r)
	case !known && !awaits:
		b.rejectRequest(r, RejectNoReplica)
	case !awaits && !b.adapterKnown(now, r):
		b.rejectRequest(r, RejectNoAdapter)
	case !b.pinKnown(r):
		b.rejectRequest(r, RejectPinnedGone)
	case b.killsExceeded(r):
		b.rejectKiller(r)
	case len(b.cfg.ScaleToZero) > 0 && b.coldQueueFull(now, r), b.queued >= b.cfg.QueueLimit && !b.mayExceedQueueLimit(now, r) && !b.evictForTenant(now, r):
		b.rejectRequest(r, RejectQueueFull)
	case b.parkRequest(now, r):
		b.addAction(Action{Kind: ActionQueue, ID: r.ID})
	default:
		q := b.enqueue(now, r)
		q.noteInteractive(now, r)
		b.waitsForReport = b.waitsForReport || awaits
		b.placeWaiting(now, q)
		if r.target == nil {
			b.addAction(Action{Kind: ActionQueue, ID: r.ID, Target: r.waitsForID(), Reason: b.queueReason(now, r)})
		}
	}
}

// maxFreeRequests is the maximum number of request objects kept for reuse.
const maxFreeRequests = 1024

// newRequest returns an empty request, reused if possible.
func (b *Balancer) newRequest() *request {
	n := len(b.freeRequests)
	if n == 0 {
		return &request{}
	}
	r := b.freeRequests[n-1]
	b.freeRequests = b.freeRequests[:n-1]
	*r = request{avoid: r.avoid[:0], refusals: r.refusals[:0]}
	return r
}

// forgetRequest removes a request that has ended. Its fields remain readable until the next request
// arrives.
func (b *Balancer) forgetRequest(r *request) {
	delete(b.requests, r.ID)
	if len(b.freeRequests) < maxFreeRequests {
		b.freeRequests = append(b.freeRequests, r)
	}
}

// handleFinished ends a request that was served.
func (b *Balancer) handleFinished(now time.Duration, id string, out *Outcome) {
	r := b.requests[id]
	if r == nil || r.target == nil {
		return
	}
	own, started := out.withoutEarlierTokens(), r.prefilled
	t := b.detachRequest(now, r, own)
	if out != nil && out.ClientError {
		b.endClientError(now, t, r, out)
		return
	}
	if !started {
		t.starts.addUnstreamed(now, r, &b.cfg)
	}
	b.learnFromEnd(now, t, r, own)
	t.removeReported(r)
	t.streams.addUnstreamed(own)
	b.queue(r.Model).chargeServed(r, out)
	if out != nil && out.OutputTokens.Known {
		b.queue(r.Model).answerLengths.addLength(max(0, out.OutputTokens.Value))
	}
	var withResponse prefix.Key
	if out != nil && len(out.Key) > len(r.Prompt) {
		withResponse = out.Key
	}
	b.caches.recordFinished(now, &t.cacheTarget, r.Tenant, r.Prompt, withResponse, r.sessionStart)
	b.counts.Finished++
	t.breaker.Served()
	b.countWrongRefusals(now, r)
	b.clearSuspect(now, r)
	b.forgetRequest(r)
	b.placeSameModel(now, r)
}

// endClientError ends a request that t rejected as invalid. The response carries no information about the health
// of t or the length of answers.
func (b *Balancer) endClientError(now time.Duration, t *target, r *request, out *Outcome) {
	b.addFailedLoad(now, t, r)
	b.queue(r.Model).chargeServed(r, out)
	b.counts.Finished++
	b.forgetRequest(r)
	b.placeSameModel(now, r)
}

// withoutEarlierTokens returns the outcome without the tokens that earlier targets generated.
func (o *Outcome) withoutEarlierTokens() *Outcome {
	if o == nil || o.EarlierTokens <= 0 || !o.OutputTokens.Known {
		return o
	}
	own := *o
	own.OutputTokens.Value = max(0, own.OutputTokens.Value-own.EarlierTokens)
	return &own
}

// handleFailed handles a request that its target did not serve. It retries the request if possible,
// and otherwise ends it.
func (b *Balancer) handleFailed(now time.Duration, id string, out *Outcome) {
	r := b.requests[id]
	if r == nil || r.target == nil {
		return
	}
	if r.prefilled {
		r.WaitingSince = now // the client's wait starts again when its stream stops
	}
	trial, before := r.target.breaker.IsTrial(r.Seq), r.target.breaker
	generated := b.estimateGenerated(now, r)
	if out != nil && out.EngineMayHaveDied {
		b.markSuspect(now, r)
	}
	t := b.detachRequest(now, r, out.withoutEarlierTokens())
	b.queue(r.Model).chargeUnserved(r, out, generated)
	faultUnclear := out != nil && out.FaultUnclear
	lacks := b.markAdapterMissing(t, r, out)
	if !faultUnclear && !lacks {
		b.countFailure(now, t, r, trial)
	}
	if out != nil && out.Unreachable {
		b.markUnreachable(now, t)
	}
	if lacks {
		r.attempts-- // the target did not try, and receives no further request for this adapter
	} else {
		b.addFailedLoad(now, t, r)
	}
	b.addPeerKills(now, r, t.id, out)
	r.avoid, r.failedAt = append(r.avoid, t.engine), now
	if out != nil && out.Refused {
		r.refusals = append(r.refusals, refusal{t, before, t.breaker, faultUnclear})
	}
	switch {
	case b.killsExceeded(r):
		b.rejectKiller(r)
	case out == nil || !out.Retryable:
		b.rejectRequest(r, RejectFailed)
	case r.onlyRefused() && !b.anyTargetRemaining(now, r):
		r.undoFailures()
		b.rejectRequest(r, RejectRefused)
	case r.attempts >= b.cfg.MaxAttempts:
		b.rejectRequest(r, RejectRetriesExhausted)
	case t.peer && b.waited(now, r) >= b.maxWait(r):
		b.rejectRequest(r, RejectWaitExceeded) // the peer queued it for its remaining wait time
	case !faultUnclear && !lacks && !b.retries.Spend(b.cfg.RetryBurst): // a client error costs the next target almost nothing
		b.retriesOverBudget++
		b.rejectRequest(r, RejectRetryBudget)
	default:
		b.requeue(now, r)
	}
	if lacks {
		b.rejectUnknown(now)
	}
	b.bounceStranded(now)
	b.placeSameModel(now, r)
}

// handleBounced handles a request that a peer could not place and returned: it is queued again, or
// ends. If the peer lacks its adapter, the peer's next report shows whether it still does.
func (b *Balancer) handleBounced(now time.Duration, id string, out *Outcome) {
	r := b.requests[id]
	if r == nil || r.target == nil || !r.target.peer {
		return
	}
	t := b.detachRequest(now, r, nil)
	lacks := r.Adapter != "" && out != nil && out.LacksModel
	if lacks {
		t.served.refuse(r.Adapter)
	} else {
		t.pausedUntil = now + b.cfg.PeerBackoff
	}
	r.attempts-- // the peer made no attempt
	b.queue(r.Model).setCharge(r, r.minCharge)
	b.addPeerKills(now, r, t.id, out)
	if b.killsExceeded(r) {
		b.rejectKiller(r)
	} else {
		b.requeue(now, r)
	}
	if lacks {
		b.rejectUnknown(now)
	}
	b.placeSameModel(now, r)
}

// requeue returns a request to its previous place in the queue.
func (b *Balancer) requeue(now time.Duration, r *request) {
	if r.From != "" && !b.servedLocally(now, r) {
		b.bounceRequest(r)
		return
	}
	if !b.pinKnown(r) {
		b.rejectRequest(r, RejectPinnedGone)
		return
	}
	b.enqueue(now, r)
}

// anyTargetRemaining reports whether a live target that r does not avoid can serve r, now or after a
// wait.
func (b *Balancer) anyTargetRemaining(now time.Duration, r *request) bool {
	for _, t := range b.replicas {
		if t.model == r.Model && !t.draining && t.live(now, &b.cfg) && !r.needsOtherTarget(t) && !t.lacksAdapter(r) && !r.avoids(t.engine) {
			return true
		}
	}
	for _, t := range b.peers {
		if b.mayForward(r, t) && t.modelLoad(r.Model) != nil && t.live(now, &b.cfg) && !r.needsOtherTarget(t) && !t.lacksAdapter(r) && !r.avoids(t.engine) {
			return true
		}
	}
	return false
}

func (r *request) avoids(engine string) bool {
	for _, a := range r.avoid {
		if a == engine {
			return true
		}
	}
	return false
}

// handleCancelled ends a request whose client disconnected. out contains the number of generated
// tokens; if it is unknown, it is estimated.
func (b *Balancer) handleCancelled(now time.Duration, id string, out *Outcome) {
	r := b.requests[id]
	if r == nil {
		return
	}
	if r.target != nil {
		generated := b.estimateGenerated(now, r)
		b.markSuspect(now, r)
		t := b.detachRequest(now, r, nil)
		b.queue(r.Model).chargeUnserved(r, out, generated)
		b.addAction(Action{Kind: ActionAbort, ID: id, Target: t.id})
	} else {
		b.dequeue(r)
	}
	b.counts.Cancelled++
	b.forgetRequest(r)
	b.placeSameModel(now, r)
}

// detachRequest removes r from its target. out is its outcome there, if known.
func (b *Balancer) detachRequest(now time.Duration, r *request, out *Outcome) *target {
	t := r.target
	t.confirm(r)
	t.removeUnstarted(r)
	t.recordStreamEnd(now, r)
	t.outstanding--
	t.breaker.Ended(r.Seq)
	t.endIsolation(r)
	t.starts.removeRequest(r)
	t.streams.removeRequest(r)
	t.work.removeRequest(r, out, t.outstanding == 0)
	t.removeFromRank(r)
	b.counts.Outstanding--
	r.target = nil
	b.queue(r.Model).recordEnded(r)
	return t
}

// rejectRequest ends a request with a reason. The request must not be in a queue.
func (b *Balancer) rejectRequest(r *request, reason string) {
	b.counts.Rejected++
	b.forgetRequest(r)
	b.addAction(Action{Kind: ActionReject, ID: r.ID, Reason: reason, Kills: b.localKills(r)})
}

// bounceRequest returns a forwarded request to its sender. The request must not be in a queue.
func (b *Balancer) bounceRequest(r *request) {
	b.counts.Bounced++
	b.forgetRequest(r)
	b.addAction(Action{Kind: ActionBounce, ID: r.ID, Target: r.From, Kills: b.localKills(r)})
}

func (b *Balancer) enqueue(now time.Duration, r *request) *queue {
	q := b.queue(r.Model)
	q.pushRequest(now, r)
	q.activeAt = now
	b.queued++
	return q
}

// waitingRequests returns a copy of the requests of a queue, including the parked ones. The queue may
// change while the caller iterates. The list is valid until the next call.
func (b *Balancer) waitingRequests(q *queue) []*request {
	b.scratchRequests = q.AllParked(q.Waiting(b.scratchRequests[:0]))
	return b.scratchRequests
}

func (b *Balancer) dequeue(r *request) {
	q := b.queue(r.Model)
	q.releaseHold(r)
	q.removeRequest(r)
	b.queued--
}

// queueIndex returns the index at which the queue of a model is, or would be inserted.
func (b *Balancer) queueIndex(model string) int {
	return sort.Search(len(b.queues), func(i int) bool { return b.queues[i].model >= model })
}

// queue returns the queue of a model. It creates the queue if needed.
func (b *Balancer) queue(model string) *queue {
	i := b.queueIndex(model)
	if i < len(b.queues) && b.queues[i].model == model {
		return b.queues[i]
	}
	b.queues = append(b.queues, nil)
	copy(b.queues[i+1:], b.queues[i:])
	b.queues[i] = newQueue(model, b.cfg.ordering(model))
	return b.queues[i]
}

// tick handles the passage of time: it ends requests that waited too long and uses targets that
// became available again.
func (b *Balancer) tick(now time.Duration) {
	b.forgetLost(now)
	b.resolveFailures(now)
	b.forgetOldSuspects(now)
	b.expireFailedLoad(now)
	b.allowTrials(now)
	b.caches.tick(now)
	b.updatePaces()
	for _, t := range b.replicas {
		t.measureStreams(now)
	}
	b.bounceStranded(now)
	if b.waitsForReport {
		b.rejectUnknown(now)
	}
	for _, q := range b.queues {
		q.ForgetIdle(now)
		b.chargeOutstanding(now, q)
		b.trackActivity(now, q)
		for _, r := range b.waitingRequests(q) {
			if reason := b.waitExceeded(now, q, r); reason != "" {
				b.dequeue(r)
				b.rejectRequest(r, reason)
			}
		}
		b.releaseDueParked(now, q)
	}
	b.placeAllWaiting(now)
}

// maxWait returns the maximum time of r in the queue. A deferred request that can be parked may
// wait until its deadline.
func (b *Balancer) maxWait(r *request) time.Duration {
	limit := b.cfg.MaxWait
	if r.Tier == service.TierDeferred && b.cfg.Deferred.Enabled() {
		if limit = max(limit, b.queue(r.Model).ordering.deadlines.For(r.Tier)); r.TimeToDeadline > 0 {
			limit = r.TimeToDeadline
		}
	}
	if r.MaxWait > 0 {
		return min(r.MaxWait, limit)
	}
	return limit
}
