package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

// readSize is how much room a read from a target has at least.
const readSize = 2 << 10

// commit sends the answer's header to the client: from here on nothing can be
// tried elsewhere.
func (x *exchange) commit(resp *http.Response) {
	h := x.w.Header()
	copyHeaders(h, resp.Header)
	x.mark(h, resp.Header)
	x.w.WriteHeader(resp.StatusCode)
	x.wrote = true
	x.dropBody()
}

// extend gives the client more time to take what is written. A client that
// takes nothing for as long as an engine may be silent is as good as gone.
func (x *exchange) extend(now time.Time) {
	if now.Before(x.until) {
		return
	}
	idle := x.rt.limits.Idle
	x.until = now.Add(idle / 8)
	_ = x.ctl.SetWriteDeadline(now.Add(idle)) // a writer without deadlines blocks as it likes
}

// unlimit takes the deadline back: the connection lives on.
func (x *exchange) unlimit() {
	if !x.until.IsZero() {
		_ = x.ctl.SetWriteDeadline(time.Time{}) // as in extend
	}
}

// relayStream passes server-sent events on as they come, whole ones only, so
// that a stream that breaks can still end in an event of our own. Nothing is
// sent to the client before the first event is complete.
func (x *exchange) relayStream(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	buf := takeBuffer()
	defer buf.release()
	defer x.unlimit()
	var events splitter
	for {
		buf.grow(readSize)
		n, err := resp.Body.Read(buf.b[len(buf.b):cap(buf.b)])
		if n > 0 {
			watch.Stop() // the client's time does not count against the target
			buf.b = buf.b[:len(buf.b)+n]
			if !x.pass(resp, buf, &events, time.Now()) {
				x.cancelled()
				return true
			}
			watch.Reset(x.rt.limits.Idle)
		}
		if err != nil {
			return x.streamEnded(ctx, resp, buf.b, err)
		}
	}
}

// pass sends the complete events at the front of buf to the client and leaves
// the rest. It reports false when the client has gone.
func (x *exchange) pass(resp *http.Response, buf *pooled, events *splitter, now time.Time) bool {
	b := buf.b
	from, at, before := 0, 0, x.answer.tokens
	for {
		size, ok := events.next(b[at:])
		if !ok {
			break
		}
		if x.look(b[at : at+size]) {
			if !x.put(resp, b[from:at], now) {
				return false
			}
			from = at + size
		}
		at += size
	}
	if at == 0 && len(b) > x.rt.limits.MaxEvent {
		at = len(b)
		*events = splitter{}
	}
	if !x.put(resp, b[from:at], now) {
		return false
	}
	if n := x.answer.tokens - before; n > 0 {
		x.token(now, n)
	}
	buf.b = b[:copy(b, b[at:])]
	return true
}

// look learns from an event and says whether the client shall not see it.
func (x *exchange) look(event []byte) (hide bool) {
	data := eventData(event)
	if data == nil {
		return false
	}
	f := x.answer.event(data)
	return f.usageOnly && x.hideUsage
}

// put writes to the client at once.
func (x *exchange) put(resp *http.Response, b []byte, now time.Time) bool {
	if len(b) == 0 {
		return true
	}
	if !x.wrote {
		x.commit(resp)
	}
	x.extend(now)
	if _, err := x.w.Write(b); err != nil {
		return false
	}
	return x.ctl.Flush() == nil
}

// streamEnded handles the end of a stream, with what is left of it: a clean one
// passes on, one that broke ends in an error event or is tried elsewhere.
func (x *exchange) streamEnded(ctx context.Context, resp *http.Response, rest []byte, err error) (ended bool) {
	if errors.Is(err, io.EOF) && len(rest) > 0 && x.look(rest) {
		rest = nil
	}
	complete := x.answer.done || x.answer.failed || !x.endpoint.done || resp.StatusCode != http.StatusOK
	switch {
	case errors.Is(err, io.EOF) && complete:
		if !x.put(resp, rest, time.Now()) {
			x.cancelled()
			return true
		}
		if !x.wrote {
			x.commit(resp)
		}
	case !x.wrote:
		return x.interrupted(ctx, unexpected(err))
	case x.req.Context().Err() != nil:
		x.cancelled()
		return true
	default:
		f := x.failureOf(ctx, unexpected(err))
		x.put(resp, x.errorEvent(f), time.Now()) // should the client be gone too, the request ends the same
		x.broke(http.StatusOK, f)
		return true
	}
	if x.answer.failed {
		x.broke(resp.StatusCode, &failure{cause: x.sent.target + " ended its answer with an error"})
		return true
	}
	x.finished(resp.StatusCode, true)
	return true
}

// unexpected is the error of a stream that ended where it should not have.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// errorEvent is what a broken stream ends in.
func (x *exchange) errorEvent(f *failure) []byte {
	e := apiError{kind: typeServer, code: "replica_failed", message: "the answer broke off: " + f.cause}
	event := "data: " + string(e.body()) + "\n\n"
	if !x.endpoint.done {
		event = "event: error\n" + event
	}
	return []byte(event)
}

// relayWhole passes an answer on that is not a stream. It is held back until it
// is complete, so that a target that dies in the middle of it costs nothing;
// only one that is too large for that goes out as it comes.
func (x *exchange) relayWhole(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	buf := takeBuffer()
	defer buf.release()
	defer x.unlimit()
	for {
		buf.grow(readSize)
		n, err := resp.Body.Read(buf.b[len(buf.b):cap(buf.b)])
		buf.b = buf.b[:len(buf.b)+n]
		if n > 0 {
			watch.Reset(x.rt.limits.Idle)
		}
		switch {
		case err == io.EOF:
			return x.wholeEnded(resp, buf.b)
		case err != nil && !x.wrote:
			return x.interrupted(ctx, err)
		case err != nil && x.req.Context().Err() == nil:
			x.broke(resp.StatusCode, x.failureOf(ctx, err))
			panic(http.ErrAbortHandler) // cuts the connection: the client must not take half an answer for whole
		case len(buf.b) > x.rt.limits.MaxHeldAnswer || x.wrote:
			if err == nil && x.put(resp, buf.b, time.Now()) {
				buf.b = buf.b[:0]
				continue
			}
			x.cancelled()
			return true
		}
	}
}

// wholeEnded ends an answer with what was held back of it.
func (x *exchange) wholeEnded(resp *http.Response, rest []byte) (ended bool) {
	if !x.wrote {
		x.answer.whole(rest)
		x.w.Header()["Content-Length"] = []string{strconv.Itoa(len(rest))}
		x.commit(resp)
	}
	x.extend(time.Now())
	if _, err := x.w.Write(rest); err != nil {
		x.cancelled()
		return true
	}
	x.finished(resp.StatusCode, resp.StatusCode == http.StatusOK)
	return true
}
