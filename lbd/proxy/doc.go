// Package proxy is the I/O layer around lbd/core: it converts HTTP requests to events, executes the
// actions that core returns, and streams responses back. It makes no placement decisions.
//
// Runtime runs one core.Balancer behind one mutex. A request is read, parsed and hashed before the
// lock is acquired. A step passes one event to core, which returns actions. The step, the delivery of its
// actions to waiting goroutines and the queueing of its line for the record file happen under the lock.
//
// Clients authenticate with API keys if any are configured; such a key is not forwarded. Without keys, a
// client's Authorization and X-Api-Key headers are for the engine and are forwarded, unless the balancer has
// a key for the engine, which replaces both. Headers named X-Skyserve-* are not copied in either direction:
// balancers set and read their own. In requests, those between balancers are read only if the sender has the
// peer token or, if neither API keys nor a peer token are configured, is on the same machine.
//
// lbd/openai interprets bodies, responses and streams, and lbd/quota enforces the limits of tenants.
// This package handles the exchange, one request between its client and a replica or a peer, and its
// accounting.
//
// Read runtime.go first (the lock and what happens under it), then exchange.go (the life of one
// request: admit, submit, run), handler.go (the HTTP routes) and limits.go (the limits, with the
// reason of each default). admit.go identifies the sender of a request, upstream.go sends it to a
// target, relay.go forwards the response, eventview.go changes its events for the client, refusal.go
// handles targets that reject requests, and resume.go continues a stream on another target if its target
// fails midway, and proof.go checks which engines can continue a chat. inflight.go contains the runtime's
// state of a request, requestbody.go its memory, and quota.go its reservation.
//
// keys.go and identitytokens.go authenticate clients, cors.go admits web pages, upgrade.go and socket.go
// handle WebSockets, and batch.go serves the requests of batches. models.go and split.go resolve model
// names; a split is a name whose sessions are divided among several models. fallback.go retries a rejected
// request at other models, and provider.go at external APIs. earlystream.go sends the header of a stream early,
// to keep the connection of a client alive whose request waits for a replica to start.
//
// stored.go, locate.go, storedrequest.go and hasresponse.go handle responses that engines store.
// targets.go and ranks.go handle replicas and peers, and silent.go replicas that do not respond. record.go
// writes every event and its actions to the --record file. A request record (record.RequestRecord) is one
// request with the decisions about it: decisions.go stores the request records and sends them to subscribers,
// and requests.go summarizes them. trace.go traces requests, and gauges.go, metrics.go,
// stats.go, traffic.go, window.go and points.go count.
package proxy
