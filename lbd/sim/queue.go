package sim

import (
	"time"

	"skyserve/lbd/core"
)

// kind says what an event is.
type kind uint8

const (
	evSession   kind = iota // index (region): a session begins, in an open loop
	evRow                   // index (of the trace's rows): a request of a trace comes
	evIssue                 // issue: a client makes its first requests, or goes on after a pause
	evArrive                // leg: a request reaches a balancer
	evSubmit                // leg, try: a request reaches a replica
	evUp                    // leg, try, word: news of a request reaches a balancer
	evAnswer                // flight, word: news of a request reaches its client
	evCancel                // leg: a cancellation reaches a balancer
	evAbort                 // leg: a cancellation reaches a replica
	evPatience              // flight: a client's patience ends
	evWake                  // index (replica), turn: an engine's step ends
	evProbe                 // index (replica): a probe reads the engine
	evReport                // index (replica), news: what a probe read reaches the balancer
	evHeartbeat             // index (balancer): it tells its peers its load
	evPeer                  // index (balancer), from, peer: a heartbeat arrives
	evTick                  // index (balancer)
	evFault                 // index (of the scenario's), from: 0 = it begins, 1 = it ends
	evAdopt                 // index (balancer): those who miss it take its replicas
	evWarm                  // the figures begin
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

// event is something that will happen. Events of one instant happen in the
// order in which they were made.
type event struct {
	at     time.Duration
	seq    uint64
	kind   kind
	word   word
	index  int32
	from   int32
	try    int32
	turn   uint64
	leg    *leg
	flight *flight
	news   *news
	peer   *core.PeerReport
	issue  []*flight
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// queue is a binary heap of events, the earliest first.
type queue struct {
	heap []event
	seq  uint64
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.heap = append(q.heap, e)
	for i := len(q.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.heap[i].before(&q.heap[up]) {
			return
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

// pop takes the earliest event; the queue must not be empty.
func (q *queue) pop() event {
	top, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < last; k++ {
			if q.heap[k].before(&q.heap[least]) {
				least = k
			}
		}
		if least == i {
			return top
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
