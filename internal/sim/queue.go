package sim

import (
	"time"

	"skyserve/lbd/core"
)

// kind says what an event is.
type kind uint8

const (
	evSession     kind = iota // index (region): a session begins, in an open loop
	evRow                     // index (of the trace's rows): a request of a trace comes
	evIssue                   // issue: a client makes its first requests, or goes on after a pause
	evArrive                  // leg: a request reaches a balancer
	evSubmit                  // leg, try: a request reaches a replica
	evUp                      // leg, try, word: news of a request reaches a balancer
	evAnswer                  // flight, word: news of a request reaches its client
	evCancel                  // leg: a cancellation reaches a balancer
	evAbort                   // leg: a cancellation reaches a replica
	evPatience                // flight: a client's patience ends
	evWake                    // index (replica), turn: an engine's step ends
	evProbe                   // index (replica): a probe reads the engine
	evReport                  // index (replica), news: what a probe read reaches the balancer
	evHeartbeat               // index (balancer): it tells its peers its load
	evPeer                    // index (balancer), from, peer: a heartbeat arrives
	evTick                    // index (balancer)
	evAskPrefixes             // index (balancer): it asks its neighbours what they learned
	evPrefixes                // index (balancer), from, learned: an answer reaches it
	evFault                   // index (of the scenario's), from: 0 = it begins, 1 = it ends
	evAdopt                   // index (balancer): those who miss it take its replicas
	evWarm                    // the figures begin
	evMoment                  // the load is looked at
)

// word is what is told of a request on its way back.
type word uint8

const (
	saidFirst word = iota
	saidDone
	saidFailed
	saidBounced
	saidBroken  // whoever served it died or was cut off
	saidRefused // whoever was to serve it cannot be reached
)

// event is something that will happen.
type event struct {
	at      time.Duration
	kind    kind
	word    word
	index   int32
	from    int32
	try     int32
	turn    uint64
	leg     *leg
	flight  *flight
	news    *news
	peer    *core.PeerReport
	learned *page
	issue   []*flight
}

// turn is an event's place in the heap: what orders it, and where it is. The
// heap holds no pointers, so that moving its entries costs the collector nothing.
type turn struct {
	at   time.Duration
	seq  uint64
	slot int32
}

func (t *turn) before(o *turn) bool { return t.at < o.at || t.at == o.at && t.seq < o.seq }

// queue gives out events, the earliest first, and those of one instant in the
// order in which they were made: a heap of four children a node.
type queue struct {
	heap  []turn
	slots []event
	free  []int32
	seq   uint64
}

// peek is the next event, nil when there is none. It holds until the next push
// or pop.
func (q *queue) peek() *event {
	if len(q.heap) == 0 {
		return nil
	}
	return &q.slots[q.heap[0].slot]
}

func (q *queue) push(e event) {
	slot := int32(len(q.slots))
	if n := len(q.free); n > 0 {
		slot = q.free[n-1]
		q.free = q.free[:n-1]
		q.slots[slot] = e
	} else {
		q.slots = append(q.slots, e)
	}
	q.seq++
	t := turn{e.at, q.seq, slot}
	q.heap = append(q.heap, t)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !t.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = t
}

// pop takes the earliest event; the queue must not be empty.
func (q *queue) pop() event {
	first, last := q.heap[0].slot, len(q.heap)-1
	t := q.heap[last]
	q.heap = q.heap[:last]
	if last > 0 {
		q.sink(t)
	}
	e := q.slots[first]
	q.free = append(q.free, first)
	return e
}

// sink puts t where it belongs from the top, which is free, downwards.
func (q *queue) sink(t turn) {
	i := 0
	for {
		least := 4*i + 1
		if least >= len(q.heap) {
			break
		}
		for k, end := least+1, min(least+4, len(q.heap)); k < end; k++ {
			if q.heap[k].before(&q.heap[least]) {
				least = k
			}
		}
		if !q.heap[least].before(&t) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = t
}
