// Package proxy is the shell around lbd/core: it turns HTTP requests into
// events, carries out the actions that core answers with, and streams answers
// back as they come. It decides nothing about placement.
//
// Runtime holds one core.Balancer behind one mutex. A request is read, scanned
// and hashed before the lock is taken; under the lock there is only the step
// itself and handing its actions to the goroutines that wait for them.
//
// Clients authenticate with API keys where some are configured; such a key is
// not passed on. Without keys a client's Authorization header is the engine's
// and passes. Headers named X-Skyserve-* never pass in either direction, but
// between balancers that know the peer token.
//
// What bodies, answers and streams mean is lbd/openai's, what a tenant may have is
// lbd/quota's; this package is the exchange: one request between its client and a replica
// or a peer, and what is counted on the way.
//
// Read runtime.go first (the lock and what happens under it), then exchange.go (the life of
// one request: admit, arrive, run), handler.go (what is served) and limits.go (every bound,
// with its reason). admit.go says who sent a request, upstream.go sends it to a target,
// relay.go carries the answer back, refusal.go is about targets that refuse, resume.go about
// streams whose target fails in the middle: another one continues them. inflight.go is what
// the runtime knows of a request, requestbody.go its memory, quota.go its reservation.
//
// stored.go, locate.go, lookup.go and holds.go are about responses that engines store,
// targets.go and ranks.go about replicas and peers, record.go writes the record,
// decisions.go and requests.go remember what was decided, gauges.go, metrics.go, stats.go,
// window.go and points.go count.
package proxy
