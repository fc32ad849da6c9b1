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
// tried elsewhere but the rest of an answer that can be continued.
func (x *exchange) commit(resp *http.Response) {
	h := x.w.Header()
	copyHeaders(h, resp.Header)
	x.mark(h, resp.Header)
	x.announce(h)
	x.w.WriteHeader(resp.StatusCode)
	x.wrote = true
	if resp.StatusCode == http.StatusOK {
		x.counts.noteServed(x.endpoint)
	}
	if !x.listens() {
		x.dropBody()
	}
}

// extend gives the client more time to take what is written. One that takes
// nothing for so long is cut off, and its request stops at the engine. A deadline
// is never taken back, so that the last piece of an answer has one too, which
// net/http writes when all is said; the next request of the connection sets its own.
func (x *exchange) extend(now time.Time) {
	stall := x.rt.limits.Stall
	switch {
	case x.req.ProtoMajor > 1:
		x.guard(stall)
	case !now.Before(x.until):
		x.until = now.Add(stall / 8)
		_ = x.ctl.SetWriteDeadline(now.Add(stall)) // a writer without deadlines blocks as it likes
	}
}

// guard is extend over HTTP/2, where a deadline ends a stream even while nothing
// is written: so it is set, in the past, when a write took too long.
func (x *exchange) guard(stall time.Duration) {
	if x.stall != nil {
		x.stall.Reset(stall)
		return
	}
	x.stall = time.AfterFunc(stall, func() { _ = x.ctl.SetWriteDeadline(time.Unix(0, 0)) })
}

// written ends what extend began.
func (x *exchange) written() {
	if x.stall != nil {
		x.stall.Stop()
	}
}

// lastWrite gives the client time for what net/http writes when all is said.
func (x *exchange) lastWrite() {
	x.written()
	if x.req.ProtoMajor > 1 {
		_ = x.ctl.SetWriteDeadline(time.Now().Add(x.rt.limits.Stall)) // as in extend
	}
}

// relayStream passes server-sent events on as they come, whole ones only, so
// that a stream that breaks can still end in an event of our own. Nothing is
// sent to the client before the first event is complete.
func (x *exchange) relayStream(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	r := streamRelay{x: x, resp: resp, watch: watch}
	defer r.keep(nil)
	err := r.readAll()
	switch r.how {
	case clientGone:
		x.cancelled()
		return true
	case targetStrays:
		x.declined(&failure{cause: x.sent.target + " began to think instead of going on", why: whyUnable})
		return true
	case targetFailed:
		return x.severed(&failure{cause: x.sent.target + " ended its answer with an error", why: whyAnswer, broke: true, kills: x.peerKills})
	}
	return x.streamEnded(ctx, resp, r.rest(), err)
}

// streamRelay takes the bytes of a stream as they come. Between two events it
// holds no buffer: of ten thousand streams most wait.
type streamRelay struct {
	x      *exchange
	resp   *http.Response
	watch  *time.Timer
	events splitter
	part   *pooled // of an event that is not complete; nil when there is none
	how    passing
}

// errPassing ends the reading of a stream that cannot be passed on.
var errPassing = errors.New("the stream is not passed on")

// readAll reads the stream to its end, which is io.EOF.
func (r *streamRelay) readAll() error {
	if to, ok := r.resp.Body.(io.WriterTo); ok {
		if _, err := to.WriteTo(r); err != nil {
			return err
		}
		return io.EOF
	}
	buf := takeBuffer()
	defer buf.release()
	buf.grow(readSize)
	for {
		n, err := r.resp.Body.Read(buf.b[:cap(buf.b)])
		if n > 0 {
			if _, err := r.Write(buf.b[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// Write passes on what of p completes events.
func (r *streamRelay) Write(p []byte) (int, error) {
	r.watch.Stop() // the client's time does not count against the target
	b := p
	if r.part != nil {
		r.part.b = append(r.part.b, p...)
		b = r.part.b
	}
	var rest []byte
	rest, r.how = r.x.pass(r.resp, b, &r.events, time.Now())
	r.keep(rest)
	if r.how != passes {
		return 0, errPassing
	}
	r.watch.Reset(r.x.rt.limits.Idle)
	return len(p), nil
}

// keep holds on to the beginning of an event, or lets go of what it held.
func (r *streamRelay) keep(rest []byte) {
	switch {
	case len(rest) == 0 && r.part != nil:
		r.part.release()
		r.part = nil
	case len(rest) > 0 && r.part == nil:
		r.part = takeBuffer()
		r.part.b = append(r.part.b, rest...)
	case len(rest) > 0:
		r.part.b = r.part.b[:copy(r.part.b, rest)]
	}
}

// rest is what came of an event that is not complete.
func (r *streamRelay) rest() []byte {
	if r.part == nil {
		return nil
	}
	return r.part.b
}

// passing is how it went to hand events on.
type passing int

const (
	passes passing = iota
	clientGone
	targetFailed // it told of a fault of its own; another can go on with the answer
	targetStrays // it goes on with something else than the answer's text
)

// pass sends the complete events at the front of b to the client and gives back
// the rest.
func (x *exchange) pass(resp *http.Response, b []byte, events *splitter, now time.Time) (rest []byte, how passing) {
	before := x.answer.tokens
	if x.seam == nil {
		rest, how = x.passAlong(resp, b, events, now)
	} else {
		rest, how = x.passJoined(b, events, now)
	}
	if n := x.answer.tokens - before; n > 0 && how != clientGone {
		x.token(now, n)
	}
	if x.wrote && !x.listens() {
		x.dropBody()
	}
	return rest, how
}

// passAlong passes events as they are.
func (x *exchange) passAlong(resp *http.Response, b []byte, events *splitter, now time.Time) (rest []byte, how passing) {
	from, at := 0, 0
	for how == passes {
		size, ok := events.next(b[at:])
		if !ok {
			break
		}
		event := b[at : at+size]
		hide, fault := x.look(event, at == 0)
		masked := !hide && !fault && x.tellsCache(event)
		if hide || fault || masked {
			if !x.put(resp, b[from:at], now) || (masked && !x.putMasked(resp, event, now)) {
				return nil, clientGone
			}
			from = at + size
		}
		if fault {
			how = targetFailed
		}
		at += size
	}
	if at == 0 && len(b) > x.rt.limits.MaxEvent {
		at = len(b)
		*events = splitter{}
		x.answer.spoken.lose()
		x.maskRest()
	}
	if !x.put(resp, b[from:at], now) {
		return nil, clientGone
	}
	return b[at:], how
}

// passJoined passes events of a target that goes on with another's answer.
func (x *exchange) passJoined(b []byte, events *splitter, now time.Time) (rest []byte, how passing) {
	out := takeBuffer()
	defer out.release()
	at := 0
	for how == passes {
		size, ok := events.next(b[at:])
		if !ok {
			break
		}
		how = x.join(out, b[at:at+size])
		at += size
	}
	if at == 0 && len(b) > x.rt.limits.MaxEvent {
		out.b = append(out.b, b...)
		at = len(b)
		*events = splitter{}
		x.answer.spoken.lose()
		x.maskRest()
	}
	if !x.put(nil, out.b, now) {
		return nil, clientGone
	}
	return b[at:], how
}

// join adds an event to out as the client shall see it.
func (x *exchange) join(out *pooled, event []byte) passing {
	mark := len(out.b)
	out.b = x.seam.event(out.b, event)
	if x.seam.strays {
		out.b = out.b[:mark]
		return targetStrays
	}
	hide, fault := x.look(out.b[mark:], false)
	switch {
	case hide || fault:
		out.b = out.b[:mark]
	case x.tellsCache(out.b[mark:]):
		hideCache(out.b[mark:])
	}
	if fault {
		return targetFailed
	}
	return passes
}

// look learns from an event and says whether the client shall not see it, and
// whether it is the word of a target that failed and can be replaced: another one
// can go on, or nothing at all was said before. first: no event waits to be passed.
func (x *exchange) look(event []byte, first bool) (hide, fault bool) {
	data := eventData(event)
	x.answer.alike = false
	if data == nil {
		return x.readKills(event), false
	}
	f := x.answer.event(data)
	x.remember()
	return f.usageOnly && x.hideUsage, x.answer.faulty && (x.mayContinue() || (first && !x.wrote))
}

// put writes to the client at once.
func (x *exchange) put(resp *http.Response, b []byte, now time.Time) bool {
	if len(b) == 0 {
		return true
	}
	if !x.wrote {
		x.commit(resp)
	}
	if x.masking {
		own := takeBuffer()
		defer own.release()
		own.b = append(own.b, b...)
		x.mask.hide(own.b)
		b = own.b
	}
	x.extend(now)
	defer x.written()
	if _, err := x.w.Write(b); err != nil {
		return false
	}
	return x.ctl.Flush() == nil
}

// streamEnded handles the end of a stream, with what is left of it: a clean one
// passes on, one that broke is continued, ends in an error event or is tried
// elsewhere.
func (x *exchange) streamEnded(ctx context.Context, resp *http.Response, rest []byte, err error) (ended bool) {
	clean := errors.Is(err, io.EOF)
	if clean {
		rest, clean = x.lastEvent(resp, rest)
	}
	switch {
	case clean:
		if !x.put(resp, rest, time.Now()) {
			x.cancelled()
			return true
		}
		if !x.wrote {
			x.extend(time.Now())
			x.commit(resp)
		}
	case !x.wrote:
		return x.interrupted(ctx, unexpected(err))
	case x.req.Context().Err() != nil:
		x.cancelled()
		return true
	default:
		return x.severed(x.failureOf(ctx, unexpected(err)))
	}
	if x.answer.failed {
		x.broke(resp.StatusCode, &failure{cause: x.sent.target + " ended its answer with an error", why: whyAnswer})
		return true
	}
	x.finished(resp.StatusCode, true)
	return true
}

// lastEvent learns from what is left of a stream that has ended without an error:
// an event that lacks its empty line. It gives what the client shall see of it,
// and says whether the stream is complete. Half an event is neither seen nor
// counted.
func (x *exchange) lastEvent(resp *http.Response, rest []byte) (seen []byte, complete bool) {
	bare := !x.endpoint.done || resp.StatusCode != http.StatusOK // such a stream does not tell its end
	ended := bare || x.answer.done || x.answer.failed
	switch {
	case len(rest) == 0:
		return nil, ended
	case !bare && half(rest):
		return nil, ended && !x.listens() // else its end can be made up for
	case !ended && !concludes(rest):
		return nil, false
	}
	if x.seam != nil {
		out := &pooled{}
		x.join(out, rest)
		return out.b, true
	}
	if hide, _ := x.look(rest, false); hide {
		return nil, true
	}
	if x.tellsCache(rest) {
		hideCache(rest) // the relay's own memory
	}
	return rest, true
}

// half says whether an event breaks off in the middle of a line or of its data.
func half(event []byte) bool {
	data := eventData(event)
	if data == nil {
		return lineEnd(event, len(event)-1) < 0
	}
	in := cursor{data: data}
	if in.peek() != '{' {
		return string(data) != "[DONE]"
	}
	_, err := in.value()
	return err != nil
}

// concludes says whether an event is the end of a stream.
func concludes(event []byte) bool {
	var a answer
	a.event(eventData(event))
	return a.done || a.failed
}

// unexpected is the error of a stream that ended where it should not have.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// relayWhole passes an answer on that is not a stream. It is held back until it
// is complete, so that a target that dies in the middle of it costs nothing;
// only one that is too large for that goes out as it comes.
func (x *exchange) relayWhole(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	buf := takeBuffer()
	defer buf.release()
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
			x.maskRest()
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
		if f := x.unfit(resp, rest); f != nil {
			x.fail(f)
			return false
		}
		x.answer.whole(rest)
		x.remember()
		if x.hidesCache {
			hideCache(rest)
		}
		x.w.Header()["Content-Length"] = []string{strconv.Itoa(len(rest))}
		x.commit(resp)
	}
	if x.masking {
		x.mask.hide(rest)
	}
	x.extend(time.Now())
	if _, err := x.w.Write(rest); err != nil {
		x.cancelled()
		return true
	}
	x.finished(resp.StatusCode, resp.StatusCode == http.StatusOK)
	return true
}
