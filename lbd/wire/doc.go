// Package wire is HTTP/1.1 at little cost, on both sides of a proxy: a Transport
// towards replicas and peers, and a FastPath towards clients, which answers requests of
// the plain kind by itself and leaves all others to net/http's server.
//
// The Transport is an http.RoundTripper. It writes a request and reads its answer on
// the caller's goroutine, keeps no goroutine and no buffer for a connection that
// waits, and decodes an answer's body in the memory that the caller reads into.
//
// What a stream that waits for its next token holds here: the connection, the
// response with its header, and nothing else. A buffer is taken from a pool
// once bytes have arrived, and only where the caller brings no room of its own.
//
// It follows RFC 9112 and is as strict as an intermediary must be. net/http's
// Transport is the reference; where the two differ, this one
//
//   - refuses an answer that two readers could take for two different things:
//     lines that end in a bare LF, folded fields, a space between a field's name
//     and its colon, Transfer-Encoding together with Content-Length or in
//     HTTP/1.0, a status line that is not HTTP/1.x SP 3DIGIT with a status of
//     100 or more, control characters in a reason;
//   - refuses a head of more than 1,000 fields, and one of more than
//     Options.MaxHeadBytes, by default 1 MiB instead of 10;
//   - refuses 101 and the method CONNECT: no connection changes its protocol;
//   - refuses a request whose Host or target is not valid, where net/http sends
//     an empty Host, and one with trailers;
//   - writes each field under its canonical name, so that a Content-Length
//     under another spelling cannot contradict the true one;
//   - sends no User-Agent and no Accept-Encoding of its own, takes no proxy from
//     the environment, and leaves Pragma and Cache-Control as they came;
//   - sends a body at once, without waiting for 100 Continue, and does not
//     probe bodies of unknown length for being empty;
//   - tries a request again once, on a new connection, instead of on every idle
//     one (see Transport.RoundTrip);
//   - ignores Request.Cancel and httptrace; contexts cancel.
//
// https is carried by net/http's own Transport, as are the protocols that it
// negotiates, unless Options.Direct has it carried here.
//
// Read transport.go first, then conn.go and body.go; request.go writes, head.go,
// frame.go and chunked.go read. Of the fast path, read fastpath.go, then session.go, plain.go
// (what is a plain request) and responder.go. connreader.go is how both sides read.
package wire
