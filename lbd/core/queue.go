package core

import (
	"sort"
	"time"
)

// queue holds the waiting requests of one model in order of arrival. A request
// that comes back (failed, bounced) takes its old place again.
type queue struct {
	model   string
	items   []*request
	head    int
	answers answers // of the model's requests that ended
}

func (q *queue) len() int { return len(q.items) - q.head }

// before orders requests by arrival; seq breaks ties of time.
func (r *request) before(o *request) bool {
	if r.arrived != o.arrived {
		return r.arrived < o.arrived
	}
	return r.seq < o.seq
}

// push puts r at its place, nearly always the end.
func (q *queue) push(r *request) {
	if q.head > 64 && q.head*2 > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	at := q.find(r)
	q.items = append(q.items, nil)
	copy(q.items[at+1:], q.items[at:])
	q.items[at] = r
}

// find is the position of r, or where it belongs.
func (q *queue) find(r *request) int {
	live := q.items[q.head:]
	return q.head + sort.Search(len(live), func(i int) bool { return !live[i].before(r) })
}

// remove takes r out; it must be in the queue.
func (q *queue) remove(r *request) { q.removeAt(q.find(r)) }

func (q *queue) removeAt(i int) {
	if i == q.head {
		q.items[i] = nil
		q.head++
		return
	}
	copy(q.items[i:], q.items[i+1:])
	q.items[len(q.items)-1] = nil
	q.items = q.items[:len(q.items)-1]
}

// oldestWait is how long the first request has waited; 0 for an empty queue.
func (q *queue) oldestWait(now time.Duration) time.Duration {
	if q.len() == 0 {
		return 0
	}
	return now - q.items[q.head].arrived
}
