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
// Read runtime.go first (the lock and what happens under it), then exchange.go
// (the life of one request), handler.go (what is served) and limits.go (every
// bound, with its reason). body.go and key.go turn a body into what core must
// know, relay.go and sse.go carry an answer back.
//
// What requests and answers take of the memory is accounted for in memory.go, in buffers
// of fixed sizes (buffer.go).
//
// A stream whose target fails in the middle is continued by another one where it
// is text and the API allows it: spoken.go keeps what the client has of it,
// continue.go says which requests' answers can be continued and makes the request
// for the rest, counts.go how many tokens the client has, seam.go makes the rest look
// like the same answer, resume.go is the part of the exchange. Nothing in the stream tells the client: some take every
// line for data, so that not even a comment is added.
package proxy
