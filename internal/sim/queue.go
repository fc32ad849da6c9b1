package sim

import (
	"time"

	"skyserve/lbd/core"
)

// kind is the kind of an event.
type kind uint8

const (
	evSession         kind = iota // index (region): a session starts, in an open loop
	evRow                         // a request of the trace arrives
	evIssue                       // issue: a client issues requests, first or after a pause
	evArrive                      // leg: a request reaches a balancer
	evSubmit                      // leg, try: a request reaches a replica
	evMessage                     // leg, try, message: a message about a request reaches a balancer
	evClientMessage               // request, message: a message about a request reaches its client
	evCancel                      // leg: a cancellation reaches a balancer
	evAbort                       // leg: a cancellation reaches a replica
	evTimeout                     // request: a client's timeout expires
	evWake                        // index (replica), wakeSeq: an engine step ends
	evCache                       // index (replica), cache: its engine's cache events reach its balancer
	evProbe                       // index (replica): a probe reads the engine
	evReport                      // index (replica), probe: a probe's report reaches the balancer
	evHeartbeat                   // index (balancer): it sends its load to its peers
	evPeer                        // index (balancer), arg (sender), peer: a heartbeat arrives
	evTick                        // index (balancer)
	evRequestPrefixes             // index (balancer): it requests its peers' prefixes
	evPrefixes                    // index (balancer), arg (sender), learned: a response reaches it
	evFault                       // index (fault), arg: faultBegins or faultEnds
	evAdopt                       // index (balancer), arg (the number of its crash): its replicas are adopted if it is still down since then
	evWarmupEnd                   // the warm-up ends
	evSampleLoad                  // the load is sampled
)

// message is the kind of a message about a request on its way back.
type message uint8

const (
	msgFirstToken message = iota
	msgDone
	msgFailed
	msgBounced
	msgBroken  // the serving process stopped or was cut off
	msgRefused // the next hop is unreachable
)

// event is a scheduled event.
type event struct {
	at      time.Duration
	kind    kind
	message message
	index   int32
	arg     int32 // its meaning depends on kind
	try     int32
	wakeSeq uint64
	leg     *leg
	request *clientRequest
	probe   *probeResult
	cache   *cacheBatch
	peer    *core.PeerReport
	learned *page
	issue   []*clientRequest
}

// heapEntry is an event's entry in the heap: its order and its slot. The heap contains no pointers, which
// keeps the garbage collector's work small.
type heapEntry struct {
	at   time.Duration
	seq  uint64
	slot int32
}

func (t *heapEntry) before(o *heapEntry) bool { return t.at < o.at || t.at == o.at && t.seq < o.seq }

// queue is a priority queue of events, ordered by time and then by insertion: a heap with four children
// per node.
type queue struct {
	heap  []heapEntry
	slots []event
	free  []int32
	seq   uint64
}

// peek returns the next event, nil if there is none. It is valid until the next push or pop.
func (q *queue) peek() *event {
	if len(q.heap) == 0 {
		return nil
	}
	return &q.slots[q.heap[0].slot]
}

func (q *queue) pushEvent(e event) {
	slot := int32(len(q.slots))
	if n := len(q.free); n > 0 {
		slot = q.free[n-1]
		q.free = q.free[:n-1]
		q.slots[slot] = e
	} else {
		q.slots = append(q.slots, e)
	}
	q.seq++
	t := heapEntry{e.at, q.seq, slot}
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

// pop removes the earliest event; the queue must not be empty.
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

// sink moves t from the top, which is free, down to its place.
func (q *queue) sink(t heapEntry) {
	i := 0
	for {
		smallest := 4*i + 1
		if smallest >= len(q.heap) {
			break
		}
		for k, end := smallest+1, min(smallest+4, len(q.heap)); k < end; k++ {
			if q.heap[k].before(&q.heap[smallest]) {
				smallest = k
			}
		}
		if !q.heap[smallest].before(&t) {
			break
		}
		q.heap[i] = q.heap[smallest]
		i = smallest
	}
	q.heap[i] = t
}
