// Package core is the balancer's mind: Balancer.Step takes one event and the
// time and returns what to do about it. It holds no goroutine, socket, file,
// clock or global randomness, so production, the simulator and a replay of a
// production log run the very same decisions.
//
// The shell around it (lbd/proxy in production, internal/sim in the simulator) turns
// sockets or an event heap into Events, keeps Step behind one lock, and carries
// out the Actions. Times are durations since the balancer's epoch on one
// monotonic clock; no time of another host ever enters, only ages.
//
// A request's life:
//
//	arrived -> queued -> dispatched to a replica -> finished
//	                \-> forwarded to a peer      -> finished
//	                \-> bounced back to the peer it came from
//	                \-> rejected (with a reason), cancelled
//
// A failed or bounced request goes back to its old place in the queue. At all
// times: arrived = finished + rejected + cancelled + bounced + queued + outstanding.
//
// What to read first, in order; the first four are the decision path, about 1,350 lines:
//
//  1. event.go: what goes in and out.
//  2. balancer.go: Step, the life of a request from its arrival to its end, tick.
//  3. place.go: draining a queue, choosing a target, sending. gather.go: the candidates.
//  4. target.go: what is known of a replica or peer, and the push rule.
//  5. fleet.go: replicas and peers come, report and go.
//
// The rest is read when it is needed, and has few methods that the path calls:
//
//   - queue.go, order.go, charge.go: the queue of a model, in which order, and what a request
//     costs its tenant. Fair turns are core/fair's.
//   - deferred.go: when deferred (NIW) work joins the others.
//   - eject.go, failedload.go, backoff.go: outlier ejection (core/breaker counts), failed
//     requests as load, waiting between rounds of retries. kill.go: requests that kill engines.
//   - learn.go, remaining.go: what answers show of a replica (core/pace) and what is left to do.
//   - caches.go: which target holds which prefix, by tenants' parts (treeowners.go). gossip.go
//     and foreign.go are what balancers of one region tell each other of it.
//   - batch.go: policies that decide for a whole pool. reconfigure.go: a new configuration while
//     requests are in flight. sound.go: reports that make no sense.
package core
