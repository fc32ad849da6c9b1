// Package wire is a cheap HTTP/1.1 implementation for both sides of a proxy: a Transport for requests
// to replicas and peers, and a FastPath for clients. The FastPath serves plain requests itself and
// passes all others to net/http's server.
//
// The Transport is an http.RoundTripper. It writes a request and reads the response on the caller's
// goroutine, keeps no goroutine and no buffer for an idle connection, and decodes the response's body
// in the caller's memory.
//
// A stream that waits for its next token uses only the connection and the response with its header. A
// buffer is taken from a pool once bytes have arrived, and only if the caller provides no memory.
//
// The package follows RFC 9112 and is as strict as an intermediary must be. net/http's Transport is
// the reference. This package has the following differences:
//
//   - it rejects a response that two readers could parse differently:
//     lines that end in a bare LF, folded fields, a space between a field's name
//     and its colon, Transfer-Encoding together with Content-Length or in
//     HTTP/1.0, a status line that is not HTTP/1.x SP 3DIGIT with a status of
//     100 or more, control characters in a reason;
//   - it rejects a head of more than 1,000 fields, and one of more than
//     Options.MaxHeadBytes, by default 1 MiB (net/http: 10 MiB);
//   - it rejects status 101 and the method CONNECT: a connection changes its protocol only
//     with Transport.Upgrade;
//   - it rejects a request with an invalid Host or target, where net/http sends
//     an empty Host, and a request with trailers;
//   - it writes each field under its canonical name, so that a Content-Length
//     in another spelling cannot contradict the real one;
//   - it adds no User-Agent and no Accept-Encoding, uses no proxy from
//     the environment, and does not change Pragma and Cache-Control;
//   - it sends a body at once, without waiting for 100 Continue, and does not
//     check whether a body of unknown length is empty;
//   - it retries a request once, on a new connection, not on every idle
//     one (see Transport.RoundTrip);
//   - it ignores Request.Cancel and httptrace; use contexts to cancel.
//
// https uses net/http's own Transport with the protocols that it negotiates, unless Options.Direct is
// set.
//
// Read transport.go first, then conn.go and body.go. request.go writes requests; head.go, frame.go
// and chunked.go read responses. For the fast path, read fastpath.go, then session.go, plain.go
// (what a plain request is) and responder.go. Both sides read through connreader.go.
package wire
