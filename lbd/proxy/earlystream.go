package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"
)

// A streamed request of a model that scales to zero may wait for minutes until a replica has started.
// Its client then receives the header of a stream and comments, so that neither the client nor a proxy
// between them times out. Comments are ignored by clients that follow the SSE standard, such as
// OpenAI's. Nothing of a response was sent, so the request can still be retried: exchange.headerSent stays
// false, and only earlyStream, the http.ResponseWriter of the exchange, knows that a header was sent.

// heartbeatComment is the comment that keeps the connection of a waiting client alive.
const heartbeatComment = ": waiting for a replica\n\n"

// maxEventError is the maximum size in bytes of an engine's error that is sent as an event.
const maxEventError = 64 << 10

// earlyStream is the http.ResponseWriter of an exchange whose header was sent before there was a
// response. It writes the events of a stream unchanged, and any other response as one event.
type earlyStream struct {
	to         http.ResponseWriter
	header     http.Header                          // of the response; not sent
	errorEvent func(status int, body []byte) []byte // returns an error response as the last event
	status     int
	framed     bool         // the response is not a stream
	body       bytes.Buffer // of an error
}

// Header returns the header of the response, which the client does not receive.
func (h *earlyStream) Header() http.Header { return h.header }

// Unwrap returns the original writer, for http.ResponseController.
func (h *earlyStream) Unwrap() http.ResponseWriter { return h.to }

// WriteHeader records the status of the response.
func (h *earlyStream) WriteHeader(status int) {
	h.status = status
	h.framed = status != http.StatusOK || !isStream(&http.Response{Header: h.header})
	if h.framed && status == http.StatusOK {
		_, _ = h.to.Write([]byte("data: ")) // an error means that the client disconnected, as the next write shows
	}
}

// Write writes a part of the response.
func (h *earlyStream) Write(p []byte) (int, error) {
	switch {
	case !h.framed:
		return h.to.Write(p)
	case h.status != http.StatusOK:
		h.body.Write(p[:min(len(p), maxEventError-h.body.Len())])
	default:
		if _, err := h.to.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\ndata: "))); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// end ends the response.
func (h *earlyStream) end() {
	switch {
	case h.framed && h.status == http.StatusOK:
		_, _ = h.to.Write([]byte("\n\n")) // an error means that the client disconnected
	case h.framed:
		_, _ = h.to.Write(h.errorEvent(h.status, h.body.Bytes()))
	}
}

// endEarlyStream ends a response whose header was sent early.
func (x *exchange) endEarlyStream() {
	if h, early := x.w.(*earlyStream); early {
		x.extendWriteDeadline(time.Now())
		h.end()
		_ = x.ctl.Flush() // an error means that the client disconnected
	}
}

// awaitAction waits for core's next action about the request. It returns false if the request has to
// end, because ctx has ended.
func (x *exchange) awaitAction(ctx context.Context) bool {
	if x.rt.sendsHeartbeats.Load() && x.receivesHeartbeats() {
		return x.awaitWithHeartbeats(ctx)
	}
	select {
	case <-ctx.Done():
		return false
	case x.latestAction = <-x.inFlight.actions:
		return true
	}
}

// receivesHeartbeats reports whether the client would receive heartbeats. A peer receives none: it sends them
// to its client itself.
func (x *exchange) receivesHeartbeats() bool {
	return x.streamWanted && x.endpoint.Streams() && x.from == "" && !x.headerSent
}

// awaitWithHeartbeats is awaitAction with heartbeats while the request waits for a replica to start,
// and then for its capacity.
func (x *exchange) awaitWithHeartbeats(ctx context.Context) bool {
	select {
	case x.latestAction = <-x.inFlight.actions:
		return true
	default: // the request is queued
	}
	timer := time.NewTimer(x.rt.limits.HeartbeatDelay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case x.latestAction = <-x.inFlight.actions:
			return true
		case <-timer.C:
			if _, early := x.w.(*earlyStream); (early || x.rt.isCold(x.placedModel())) && !x.sendHeartbeat() {
				x.headerSent = true // the client has disconnected
				x.inFlight.abort()
				return false
			}
			timer.Reset(x.rt.limits.HeartbeatInterval)
		}
	}
}

// sendHeartbeat sends a comment, before the first one the header of a stream. It returns false if the
// client has disconnected.
func (x *exchange) sendHeartbeat() bool {
	x.extendWriteDeadline(time.Now())
	defer x.stopStallTimer()
	if _, early := x.w.(*earlyStream); !early {
		h := x.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx would wait for more
		h.Set(headerRequestID, x.inFlight.id)
		h.Set(headerRegion, string(x.rt.self.Region))
		x.setLimitHeaders(h)
		x.w.WriteHeader(http.StatusOK)
		x.w = &earlyStream{to: x.w, header: http.Header{}, errorEvent: func(status int, body []byte) []byte {
			return x.endpoint.ErrorResponseEvent(status, body, x.inFlight.id)
		}}
	}
	if _, err := fmt.Fprint(x.w.(*earlyStream).to, heartbeatComment); err != nil {
		return false
	}
	return x.ctl.Flush() == nil
}

// isCold reports whether requests for a model wait for a replica to start.
func (r *Runtime) isCold(model string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.IsCold(r.Elapsed(), model)
}
