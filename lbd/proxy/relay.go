package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"skyserve/lbd/buffer"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// readSize is the minimum free space for a read from a target.
const readSize = 2 << 10

// commit sends the response's header to the client. From then on the request cannot be retried; only
// the rest of a response that can be continued can.
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
	if !x.keepsTranscript() {
		x.dropBody()
	}
}

// extend extends the client's write deadline. A client that reads nothing for that long is
// disconnected, and its request stops at the engine. A deadline is never cleared, so that the last
// piece of a response, which net/http writes after the handler has returned, has one too. The next
// request of the connection sets its own.
func (x *exchange) extend(now time.Time) {
	stall := x.rt.limits.Stall
	switch {
	case x.req.ProtoMajor > 1:
		x.guard(stall)
	case !now.Before(x.until):
		x.until = now.Add(stall / 8)
		_ = x.ctl.SetWriteDeadline(now.Add(stall)) // a writer without deadlines may block
	}
}

// guard is extend over HTTP/2, where a deadline ends a stream even while nothing is written. So a
// deadline in the past is set when a write took too long.
func (x *exchange) guard(stall time.Duration) {
	if x.stall != nil {
		x.stall.Reset(stall)
		return
	}
	x.stall = time.AfterFunc(stall, func() { _ = x.ctl.SetWriteDeadline(time.Unix(0, 0)) })
}

// written stops the timer that extend started.
func (x *exchange) written() {
	if x.stall != nil {
		x.stall.Stop()
	}
}

// lastWrite sets a deadline for what net/http writes after the handler has returned.
func (x *exchange) lastWrite() {
	x.written()
	if x.req.ProtoMajor > 1 {
		_ = x.ctl.SetWriteDeadline(time.Now().Add(x.rt.limits.Stall)) // as in extend
	}
}

// relayStream forwards server-sent events as they arrive, complete ones only, so that an interrupted
// stream can still end in an error event. Nothing is sent to the client before the first event is
// complete.
func (x *exchange) relayStream(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	r := streamRelay{x: x, resp: resp, watch: watch, held: x.hold()}
	defer r.keep(nil)
	err := r.readAll()
	switch r.how {
	case clientClosed:
		x.cancelled()
		return true
	case targetDiverges:
		x.declined(&failure{cause: x.sent.target + " started reasoning instead of continuing the response", why: whyUnable})
		return true
	case targetFailed:
		return x.severed(&failure{cause: x.sent.target + " ended its response with an error", why: whyAnswer, broke: true, kills: x.peerKills})
	}
	return x.streamEnded(ctx, resp, r.partial(), err)
}

// streamRelay receives the bytes of a stream. It has no buffer between two events: of ten thousand
// streams most are idle.
type streamRelay struct {
	x      *exchange
	resp   *http.Response
	watch  *time.Timer
	events openai.Splitter
	part   *buffer.Buffer  // of an incomplete event; nil when there is none
	held   quota.MemoryUse // memory of part
	how    passing
}

// errPassing ends the reading of a stream that cannot be forwarded.
var errPassing = errors.New("the stream cannot be forwarded")

// readAll reads the stream to its end, which is io.EOF.
func (r *streamRelay) readAll() error {
	if to, ok := r.resp.Body.(io.WriterTo); ok {
		if _, err := to.WriteTo(r); err != nil {
			return err
		}
		return io.EOF
	}
	buf := buffer.Take(readSize)
	defer buf.Release()
	for {
		n, err := r.resp.Body.Read(buf.B[:cap(buf.B)])
		if n > 0 {
			if _, err := r.Write(buf.B[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// Write forwards the events that p completes.
func (r *streamRelay) Write(p []byte) (int, error) {
	r.watch.Stop() // the client's time does not count against the target
	b, most := p, r.x.rt.limits.MaxEvent
	if r.part != nil {
		r.part.Grow(len(p))
		r.part.B = append(r.part.B, p...)
		if b = r.part.B; r.held.Set(int64(cap(b))) != nil {
			most = 0
		}
	}
	var rest []byte
	rest, r.how = r.x.pass(r.resp, b, &r.events, most, time.Now())
	r.keep(rest)
	if r.how != passes {
		return 0, errPassing
	}
	r.watch.Reset(r.x.rt.limits.Idle)
	return len(p), nil
}

// keep buffers the start of an event, or releases the buffer.
func (r *streamRelay) keep(rest []byte) {
	switch {
	case len(rest) == 0 && r.part != nil:
		r.part.Release()
		r.part = nil
		r.held.Release()
	case len(rest) > 0 && r.part == nil:
		r.part = buffer.Take(len(rest))
		r.part.B = append(r.part.B, rest...)
		_ = r.held.Set(int64(cap(r.part.B))) // if this fails, the next piece is refused
	case len(rest) > 0:
		r.part.B = r.part.B[:copy(r.part.B, rest)]
	}
}

// partial returns the bytes of an incomplete event.
func (r *streamRelay) partial() []byte {
	if r.part == nil {
		return nil
	}
	return r.part.B
}

// passing is the result of forwarding events.
type passing int

const (
	passes passing = iota
	clientClosed
	targetFailed   // it reported a fault of its own; another target can continue the response
	targetDiverges // it continues with something else than the response's text
)

// pass sends the complete events at the start of b to the client and returns the remaining bytes: an
// event of most bytes at most; a longer one is sent in pieces.
func (x *exchange) pass(resp *http.Response, b []byte, events *openai.Splitter, most int, now time.Time) (rest []byte, how passing) {
	before := x.answer.Tokens
	if x.splice == nil {
		rest, how = x.passAlong(resp, b, events, most, now)
	} else {
		rest, how = x.passJoined(b, events, most, now)
	}
	if n := x.answer.Tokens - before; n > 0 && how != clientClosed {
		x.token(now, n)
	}
	if x.wrote && !x.keepsTranscript() {
		x.dropBody()
	}
	return rest, how
}

// passAlong forwards events unchanged, except for what the client did not request.
func (x *exchange) passAlong(resp *http.Response, b []byte, events *openai.Splitter, most int, now time.Time) (rest []byte, how passing) {
	var out *buffer.Buffer // what to send to the client, if that is not all of b
	defer func() {
		if out != nil {
			out.Release()
		}
	}()
	from, at := 0, 0
	for how == passes {
		size, ok := events.Next(b[at:])
		if !ok {
			break
		}
		event := b[at : at+size]
		seen := x.inspect(event, at == 0)
		if seen.changed() {
			if out == nil {
				out = buffer.Take(buffer.UsualSize)
			}
			out.B = seen.append(append(out.B, b[from:at]...), event)
			from = at + size
		}
		if seen.fault {
			how = targetFailed
		}
		at += size
	}
	if at == 0 && len(b) > most {
		at = len(b)
		*events = openai.Splitter{}
		x.answer.Transcript.Discard()
		x.maskRest()
	}
	whole := b[from:at]
	if out != nil {
		out.B = append(out.B, whole...)
		whole = out.B
	}
	if !x.put(resp, whole, now) {
		return nil, clientClosed
	}
	return b[at:], how
}

// passJoined forwards events of a target that continues another target's response.
func (x *exchange) passJoined(b []byte, events *openai.Splitter, most int, now time.Time) (rest []byte, how passing) {
	out := buffer.Take(buffer.UsualSize)
	defer out.Release()
	at := 0
	for how == passes {
		size, ok := events.Next(b[at:])
		if !ok {
			break
		}
		how = x.join(out, b[at:at+size])
		at += size
	}
	if at == 0 && len(b) > most {
		out.B = append(out.B, b...)
		at = len(b)
		*events = openai.Splitter{}
		x.answer.Transcript.Discard()
		x.maskRest()
	}
	if !x.put(nil, out.B, now) {
		return nil, clientClosed
	}
	return b[at:], how
}

// join appends an event to out in the form for the client.
func (x *exchange) join(out *buffer.Buffer, event []byte) passing {
	mark := len(out.B)
	out.B = x.splice.Event(out.B, event)
	if x.splice.Diverges {
		out.B = out.B[:mark]
		return targetDiverges
	}
	seen := x.inspect(out.B[mark:], false)
	if seen.changed() {
		out.B = append(out.B[:mark], seen.append(nil, out.B[mark:])...)
	}
	if seen.fault {
		return targetFailed
	}
	return passes
}

// inspect parses an event and returns how to show it to the client. first: no earlier event waits to
// be forwarded.
func (x *exchange) inspect(event []byte, first bool) (seen view) {
	seen.data = openai.EventData(event)
	x.answer.OnlyText = false
	if seen.data == nil {
		seen.hide = x.readKills(event)
		seen.masked = x.showsCache(event)
		return seen
	}
	f := x.answer.Event(seen.data)
	x.remember()
	seen.hide = f.UsageOnly && x.hideUsage
	seen.fault = x.answer.Faulty && (x.mayContinue() || (first && !x.wrote))
	if x.counting && x.hideCounts {
		seen.counts = f.Counts
	}
	seen.masked = x.showsCache(event)
	return seen
}

// view is how to show an event to the client: unchanged, not at all (hide), without the usage so far
// (counts), or with cached tokens masked (masked). fault: the event is the error of a failed target
// that can be replaced, because another one can continue or nothing was sent before. It is hidden too.
type view struct {
	hide, fault, masked bool
	counts              openai.Span
	data                []byte // of the event
}

// changed reports whether the client sees the event in another form.
func (v *view) changed() bool { return v.hide || v.fault || v.masked || v.counts != openai.Span{} }

// append appends the form for the client of a changed event.
func (v *view) append(dst, event []byte) []byte {
	if v.hide || v.fault {
		return dst
	}
	from := len(dst)
	if v.counts != (openai.Span{}) {
		dst = openai.WithoutCounts(dst, event, v.data, v.counts)
	} else {
		dst = append(dst, event...)
	}
	if v.masked {
		openai.HideCache(dst[from:])
	}
	return dst
}

// put writes to the client and flushes.
func (x *exchange) put(resp *http.Response, b []byte, now time.Time) bool {
	if len(b) == 0 {
		return true
	}
	if !x.wrote {
		x.commit(resp)
	}
	if x.masking {
		own := buffer.Take(len(b))
		defer own.Release()
		own.B = append(own.B, b...)
		x.mask.Hide(own.B)
		b = own.B
	}
	x.extend(now)
	defer x.written()
	if _, err := x.w.Write(b); err != nil {
		return false
	}
	return x.ctl.Flush() == nil
}

// streamEnded handles the end of a stream and its remaining bytes. A clean end is forwarded; an
// interrupted stream is continued, ends in an error event, or is retried.
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
	if x.answer.Failed {
		x.broke(resp.StatusCode, &failure{cause: x.sent.target + " ended its response with an error", why: whyAnswer})
		return true
	}
	x.finished(resp.StatusCode, true)
	return true
}

// lastEvent parses the remaining bytes of a stream that ended without an error: an event without its
// empty line. shown is the form for the client. It also reports whether the stream is complete. A
// partial event is neither shown nor counted.
func (x *exchange) lastEvent(resp *http.Response, rest []byte) (shown []byte, complete bool) {
	bare := !x.endpoint.EndsInDone || resp.StatusCode != http.StatusOK // such a stream has no end marker
	ended := bare || x.answer.Done || x.answer.Failed
	switch {
	case len(rest) == 0:
		return nil, ended
	case !bare && openai.IsPartial(rest):
		return nil, ended && !x.keepsTranscript() // otherwise its end can be generated
	case !ended && !openai.EndsStream(rest):
		return nil, false
	}
	if x.splice != nil {
		out := &buffer.Buffer{}
		x.join(out, rest)
		return out.B, true
	}
	seen := x.inspect(rest, false)
	if seen.fault = false; seen.changed() { // no retry after the end
		return seen.append(nil, rest), true
	}
	return rest, true
}

// unexpected returns the error of a stream that ended prematurely.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// relayWhole forwards a response that is not a stream. It buffers the response until it is complete,
// so that a target that fails midway can be replaced. A response that is too large for that, or for
// which there is no memory, is forwarded as it arrives.
func (x *exchange) relayWhole(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	buf, mem := buffer.Take(buffer.UsualSize), x.hold()
	defer buf.Release()
	defer mem.Release()
	for {
		buf.Grow(readSize)
		full := mem.Set(int64(cap(buf.B))) != nil
		n, err := resp.Body.Read(buf.B[len(buf.B):cap(buf.B)])
		buf.B = buf.B[:len(buf.B)+n]
		if n > 0 {
			watch.Reset(x.rt.limits.Idle)
		}
		switch {
		case err == io.EOF:
			return x.wholeEnded(resp, buf.B)
		case err != nil && !x.wrote:
			return x.interrupted(ctx, err)
		case err != nil && x.req.Context().Err() == nil:
			x.broke(resp.StatusCode, x.failureOf(ctx, err))
			panic(http.ErrAbortHandler) // closes the connection: the client must not accept a partial response as complete
		case len(buf.B) > x.rt.limits.MaxHeldAnswer || full || x.wrote:
			x.maskRest()
			x.unread = true
			if err == nil && x.put(resp, buf.B, time.Now()) {
				buf.B = buf.B[:0]
				continue
			}
			x.cancelled()
			return true
		}
	}
}

// wholeEnded ends a response with its buffered bytes.
func (x *exchange) wholeEnded(resp *http.Response, rest []byte) (ended bool) {
	if !x.wrote {
		if f := x.unfit(resp, rest); f != nil {
			x.fail(f)
			return false
		}
		x.answer.Whole(rest)
		x.remember()
		if x.hidesCache {
			openai.HideCache(rest)
		}
		x.w.Header()["Content-Length"] = []string{strconv.Itoa(len(rest))}
		x.commit(resp)
	}
	if x.unread && resp.StatusCode == http.StatusOK {
		x.estimate()
	}
	if x.masking {
		x.mask.Hide(rest)
	}
	x.extend(time.Now())
	if _, err := x.w.Write(rest); err != nil {
		x.cancelled()
		return true
	}
	x.finished(resp.StatusCode, resp.StatusCode == http.StatusOK)
	return true
}
