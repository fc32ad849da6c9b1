// Package core contains the balancer's decisions. Balancer.Step takes one event and the current
// time, and returns the actions to perform. The package has no goroutines, sockets, files, clock or
// global randomness, so production, the simulator and a replay of a record file make exactly the
// same decisions.
//
// The caller (lbd/proxy in production, internal/sim in the simulator) translates sockets or an
// event heap into Events, calls Step under one lock, and performs the Actions. Times are durations
// since the balancer's epoch on one monotonic clock. Times of other hosts are never used; messages
// contain ages.
//
// An answer is a text that an engine generates for a request; lbd/policy and lbd/prefix call it a response. A request
// with n > 1 gets several answers in one response (Request.Completions).
//
// Some JSON keys are former names of their fields: elsewhere_tokens, broke, unsure, killers, answered, forgotten,
// keep, wait, beside and others. They do not change, because other versions of skyserve read them.
//
// The life of a request:
//
//	arrived -> queued -> dispatched to a replica -> finished
//	                \-> forwarded to a peer      -> finished
//	                \-> bounced back to the peer that forwarded it
//	                \-> rejected (with a reason), cancelled
//
// A failed or bounced request returns to its previous place in the queue. At all times: arrived =
// finished + rejected + cancelled + bounced + queued + outstanding.
//
// A policy may hold a queued request: it waits for one full replica, while requests behind it are sent. A
// deferred request (NIW) may be parked: it waits outside the order of the queue until replicas have spare KV
// memory or its deadline is near.
//
// Reading order; the first four items are the decision path, about 1,500 lines:
//
//  1. event.go: inputs and outputs.
//  2. balancer.go: Step, the life of a request from its arrival to its end, tick.
//  3. place.go: placing the requests of a queue, choosing a target, sending. gather.go: the candidates.
//  4. target.go: the state of a replica or peer, and the push mode.
//  5. membership.go: replicas and peers are added, report and are removed; Snapshot.
//
// The other files contain details that the decision path calls through a few methods:
//
//   - config.go: the configuration, its defaults, and the push modes.
//   - queue.go, order.go, charge.go: the queue of a model, its order, and the tokens that a
//     request costs its tenant. Fairness between tenants is in core/fair. queueposition.go: the same
//     order for other queues.
//   - pinned.go: requests that only one target can serve. adapters.go: requests that need a LoRA adapter,
//     which some replicas may lack.
//   - deferred.go: when deferred (NIW) requests join the interactive ones. cold.go: requests for models that scale
//     to zero.
//   - eject.go, failedload.go, backoff.go: outlier ejection (core/breaker counts failures), failed
//     requests as load, backoff between rounds of retries. kill.go: requests that kill engines.
//   - starts.go: how many requests an engine starts at once, which bounds a burst.
//   - learn.go, remaining.go: replica speed learned from responses (core/pace), the number of
//     requests that an engine without metrics runs at once (core/concurrency), remaining work.
//     streams.go: the speed in the last seconds, for display and alerts. prefilled.go, evictions.go: the
//     prompt tokens that engines have computed, and the share that had been cached before.
//   - caches.go: which target has cached which prefix, with a share of the tree per tenant
//     (treetenants.go). gossip.go and foreign.go: how balancers share this. cachechange.go: changes that
//     engines report.
//   - pool.go: policies that decide for a whole pool. reconfigure.go: a new configuration while
//     requests are in flight. sanitize.go: reports with impossible figures.
package core
