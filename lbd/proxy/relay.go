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

// minReadSize is the minimum free space for a read from a target.
const minReadSize = 2 << 10

// sendHeader sends the response's header to the client. After that the request cannot be retried:
// another target can only continue the response, if that is possible.
func (x *exchange) sendHeader(resp *http.Response) {
	h := x.w.Header()
	copyHeaders(h, resp.Header)
	x.setResponseHeaders(h, resp.Header)
	x.setLimitHeaders(h)
	x.w.WriteHeader(resp.StatusCode)
	x.headerSent = true
	x.updateTrust(resp.StatusCode)
	if !x.hasTranscript() {
		x.releaseBody()
	}
}

// extendWriteDeadline extends the client's write deadline. A client that does not read for that time is
// disconnected, and its request is stopped at the engine. A deadline is never cleared, so that it also
// applies to the last piece of a response, which net/http writes after the handler has returned. The
// next request of the connection sets its own.
func (x *exchange) extendWriteDeadline(now time.Time) {
	stall := x.rt.limits.StallTimeout
	switch {
	case x.req.ProtoMajor > 1:
		x.guardHTTP2Write(stall)
	case !now.Before(x.deadlineDue):
		x.deadlineDue = now.Add(stall / 8)
		_ = x.ctl.SetWriteDeadline(now.Add(stall)) // a writer without deadlines may block
	}
}

// guardHTTP2Write is extendWriteDeadline over HTTP/2, where a deadline ends a stream even while nothing
// is written. Therefore a deadline in the past is set when a write has taken too long.
func (x *exchange) guardHTTP2Write(stall time.Duration) {
	if x.stallTimer != nil {
		x.stallTimer.Reset(stall)
		return
	}
	x.stallTimer = time.AfterFunc(stall, func() { _ = x.ctl.SetWriteDeadline(time.Unix(0, 0)) })
}

// stopStallTimer stops the timer that extendWriteDeadline started.
func (x *exchange) stopStallTimer() {
	if x.stallTimer != nil {
		x.stallTimer.Stop()
	}
}

// setFinalWriteDeadline sets a deadline for the data that net/http writes after the handler has
// returned.
func (x *exchange) setFinalWriteDeadline() {
	x.stopStallTimer()
	if x.req.ProtoMajor > 1 {
		_ = x.ctl.SetWriteDeadline(time.Now().Add(x.rt.limits.StallTimeout)) // as in extendWriteDeadline
	}
}

// relayStream forwards server-sent events as they arrive, complete ones only, so that an interrupted
// stream can still end in an error event. Nothing is sent to the client before the first event is
// complete.
func (x *exchange) relayStream(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	r := streamRelay{x: x, resp: resp, watch: watch, memory: x.useMemory()}
	defer r.bufferRest(nil)
	err := r.readAll()
	switch r.result {
	case clientClosed:
		x.endCancelled()
		return true
	case targetDiverges:
		x.endDeclined(&failure{cause: x.current.target + " started reasoning instead of continuing the response", kind: failureCannotContinue})
		return true
	case targetRestarts:
		x.refuteContinuation()
		x.endDeclined(&failure{cause: x.current.target + " began a new response instead of continuing it", kind: failureCannotContinue})
		return true
	case targetFailed:
		return x.handleStreamFailure(&failure{cause: x.current.target + " ended its response with an error", kind: failureErrorResponse, broken: true, kills: x.peerKills})
	}
	return x.endStream(ctx, resp, r.partial(), err)
}

// streamRelay receives the bytes of a stream. It has no buffer between two events, because most of
// ten thousand streams are idle.
type streamRelay struct {
	x       *exchange
	resp    *http.Response
	watch   *time.Timer
	events  openai.Splitter
	pending *buffer.Buffer  // an incomplete event; nil if there is none
	memory  quota.MemoryUse // memory of pending
	result  forwardResult
}

// errNotForwarded ends the reading of a stream that cannot be forwarded.
var errNotForwarded = errors.New("the stream cannot be forwarded")

// readAll reads the stream to its end, which is io.EOF.
func (r *streamRelay) readAll() error {
	if to, ok := r.resp.Body.(io.WriterTo); ok {
		if _, err := to.WriteTo(r); err != nil {
			return err
		}
		return io.EOF
	}
	buf := buffer.Get(minReadSize)
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
	r.watch.Stop() // time spent on writing to the client does not count for the target
	b, limit := p, r.x.rt.limits.MaxEvent
	if r.pending != nil {
		r.pending.Grow(len(p))
		r.pending.B = append(r.pending.B, p...)
		if b = r.pending.B; r.memory.Set(int64(cap(b))) != nil {
			limit = 0
		}
	}
	var rest []byte
	rest, r.result = r.x.forwardEvents(r.resp, b, &r.events, limit, time.Now())
	r.bufferRest(rest)
	if r.result != forwardOK {
		return 0, errNotForwarded
	}
	r.watch.Reset(r.x.rt.limits.IdleTimeout)
	return len(p), nil
}

// bufferRest buffers the start of an event, or releases the buffer.
func (r *streamRelay) bufferRest(rest []byte) {
	switch {
	case len(rest) == 0 && r.pending != nil:
		r.pending.Release()
		r.pending = nil
		r.memory.Release()
	case len(rest) > 0 && r.pending == nil:
		r.pending = buffer.Get(len(rest))
		r.pending.B = append(r.pending.B, rest...)
		_ = r.memory.Set(int64(cap(r.pending.B))) // after an error, Write tries it again before it buffers more
	case len(rest) > 0:
		r.pending.B = r.pending.B[:copy(r.pending.B, rest)]
	}
}

// partial returns the bytes of an incomplete event.
func (r *streamRelay) partial() []byte {
	if r.pending == nil {
		return nil
	}
	return r.pending.B
}

// forwardResult is the result of forwarding events.
type forwardResult int

const (
	forwardOK forwardResult = iota
	clientClosed
	targetFailed   // it reported a fault; another target can continue the response
	targetDiverges // it sent data that does not continue the response's text
	targetRestarts // it sent the beginning of the response's text again
)

// forwardEvents sends the complete events at the start of b to the client and returns the remaining bytes: an
// incomplete event of at most limit bytes. A longer event is sent in pieces.
func (x *exchange) forwardEvents(resp *http.Response, b []byte, events *openai.Splitter, limit int, now time.Time) (rest []byte, result forwardResult) {
	before := x.answer.Tokens
	if x.splice == nil {
		rest, result = x.forwardUnchanged(resp, b, events, limit, now)
	} else {
		rest, result = x.forwardJoined(b, events, limit, now)
	}
	if n := x.answer.Tokens - before; n > 0 && result != clientClosed {
		x.recordTokens(now, n)
	}
	if x.headerSent && !x.hasTranscript() {
		x.releaseBody()
	}
	return rest, result
}

// forwardUnchanged forwards events of a response that has had only one target. It only removes data that the
// client did not request or must not see.
func (x *exchange) forwardUnchanged(resp *http.Response, b []byte, events *openai.Splitter, limit int, now time.Time) (rest []byte, result forwardResult) {
	var out *buffer.Buffer // the data for the client, if it differs from b
	defer func() {
		if out != nil {
			out.Release()
		}
	}()
	from, at := 0, 0
	for result == forwardOK {
		size, ok := events.Next(b[at:])
		if !ok {
			break
		}
		event := b[at : at+size]
		seen := x.inspect(event, at == 0)
		if seen.changed() {
			if out == nil {
				out = buffer.Get(buffer.UsualSize)
			}
			out.B = seen.append(append(out.B, b[from:at]...), event)
			from = at + size
		}
		if seen.fault {
			result = targetFailed
		}
		at += size
	}
	if at == 0 && len(b) > limit {
		at = len(b)
		*events = openai.Splitter{}
		x.answer.Transcript.Discard()
		x.startMasking()
	}
	whole := b[from:at]
	if out != nil {
		out.B = append(out.B, whole...)
		whole = out.B
	}
	if !x.writeToClient(resp, whole, now) {
		return nil, clientClosed
	}
	return b[at:], result
}

// forwardJoined forwards events of a target that continues another target's response.
func (x *exchange) forwardJoined(b []byte, events *openai.Splitter, limit int, now time.Time) (rest []byte, result forwardResult) {
	out := buffer.Get(buffer.UsualSize)
	defer out.Release()
	at := 0
	for result == forwardOK {
		size, ok := events.Next(b[at:])
		if !ok {
			break
		}
		result = x.joinEvent(out, b[at:at+size])
		at += size
	}
	if at == 0 && len(b) > limit {
		out.B = append(out.B, b...)
		at = len(b)
		*events = openai.Splitter{}
		x.answer.Transcript.Discard()
		x.startMasking()
	}
	if !x.writeToClient(nil, out.B, now) {
		return nil, clientClosed
	}
	return b[at:], result
}

// joinEvent appends the events to out that can be forwarded, now that event has arrived.
func (x *exchange) joinEvent(out *buffer.Buffer, event []byte) (result forwardResult) {
	for _, e := range x.splice.Admit(event) {
		if result = x.appendJoined(out, e); result != forwardOK {
			return result
		}
	}
	if x.splice.Restarted {
		return targetRestarts
	}
	return forwardOK
}

// appendJoined appends an event to out in the form for the client.
func (x *exchange) appendJoined(out *buffer.Buffer, event []byte) forwardResult {
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
	return forwardOK
}

// inspect parses an event and returns its form for the client. first: no earlier event waits to be
// forwarded.
func (x *exchange) inspect(event []byte, first bool) (seen eventView) {
	seen.data, seen.messages = openai.EventData(event), x.endpoint.Messages
	x.answer.OnlyText = false
	if seen.data == nil {
		seen.hide = x.readKills(event)
		seen.masked = x.hasCacheFigures(event)
		return seen
	}
	f := x.answer.Event(seen.data)
	x.rememberHolder()
	seen.hide = f.UsageOnly && x.hideUsage
	seen.fault = x.answer.Faulty && (x.mayContinue() || (first && !x.headerSent))
	if x.usageSoFarRequested && x.hideUsageSoFar {
		seen.counts = f.Counts
	}
	seen.masked = x.hasCacheFigures(event)
	return seen
}

// writeToClient writes to the client and flushes.
func (x *exchange) writeToClient(resp *http.Response, b []byte, now time.Time) bool {
	if len(b) == 0 {
		return true
	}
	if !x.headerSent {
		x.sendHeader(resp)
	}
	if x.masking {
		own := buffer.Get(len(b))
		defer own.Release()
		own.B = append(own.B, b...)
		x.mask.Hide(own.B)
		b = own.B
	}
	x.extendWriteDeadline(now)
	defer x.stopStallTimer()
	if _, err := x.w.Write(b); err != nil {
		return false
	}
	return x.ctl.Flush() == nil
}

// endStream handles the end of a stream and its remaining bytes. The end of a complete stream is
// forwarded. An interrupted stream is continued, ends in an error event, or is retried.
func (x *exchange) endStream(ctx context.Context, resp *http.Response, rest []byte, err error) (ended bool) {
	clean := errors.Is(err, io.EOF)
	if clean {
		rest, clean = x.parseLastEvent(resp, rest)
	}
	switch {
	case clean:
		if !x.writeToClient(resp, rest, time.Now()) {
			x.endCancelled()
			return true
		}
		if !x.headerSent {
			x.extendWriteDeadline(time.Now())
			x.sendHeader(resp)
		}
	case !x.headerSent:
		return x.handleInterrupted(ctx, unexpectedEOF(err))
	case x.req.Context().Err() != nil && x.answer.Done && !x.answer.Failed:
		x.endServed(resp.StatusCode, true) // the client had the whole response before it disconnected
		return true
	case x.req.Context().Err() != nil:
		x.endCancelled()
		return true
	default:
		return x.handleStreamFailure(x.failureFromError(ctx, unexpectedEOF(err)))
	}
	if x.answer.Failed {
		x.endBroken(resp.StatusCode, &failure{cause: x.current.target + " ended its response with an error", kind: failureErrorResponse})
		return true
	}
	x.endServed(resp.StatusCode, true)
	return true
}

// parseLastEvent parses the remaining bytes of a stream that ended without an error: an event without its
// empty line. shown is the form for the client. It also reports whether the stream is complete. A partial
// event is neither forwarded nor counted.
func (x *exchange) parseLastEvent(resp *http.Response, rest []byte) (shown []byte, complete bool) {
	noEndMarker := !x.endpoint.MarksEnd || resp.StatusCode != http.StatusOK // such a stream has no end marker
	ended := noEndMarker || x.answer.Done || x.answer.Failed
	switch {
	case len(rest) == 0:
		return nil, ended
	case !noEndMarker && openai.IsPartial(rest):
		return nil, ended && !x.hasTranscript() // with a transcript, the end can be generated
	case !ended && !x.endpoint.EndsStream(rest):
		return nil, false
	}
	if x.splice != nil {
		out := &buffer.Buffer{}
		x.joinEvent(out, rest)
		return out.B, true
	}
	seen := x.inspect(rest, false)
	if seen.fault = false; seen.changed() { // no retry after the end
		return seen.append(nil, rest), true
	}
	return rest, true
}

// unexpectedEOF returns the error of a stream that ended prematurely.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// relayWhole forwards a response that is not a stream. It buffers the response until it is complete,
// so that a target that fails midway can be replaced. A response that is too large to buffer, or for
// which there is no memory, is forwarded as it arrives, and so are audio and images.
func (x *exchange) relayWhole(ctx context.Context, resp *http.Response, watch *time.Timer) (ended bool) {
	buf, mem := buffer.Get(buffer.UsualSize), x.useMemory()
	defer buf.Release()
	defer mem.Release()
	asItArrives := x.endpoint.Opaque && !isJSON(resp)
	for {
		buf.Grow(minReadSize)
		full := mem.Set(int64(cap(buf.B))) != nil
		n, err := resp.Body.Read(buf.B[len(buf.B):cap(buf.B)])
		buf.B = buf.B[:len(buf.B)+n]
		if n > 0 {
			watch.Reset(x.rt.limits.IdleTimeout)
		}
		switch {
		case err == io.EOF:
			return x.endWhole(resp, buf.B)
		case err != nil && !x.headerSent:
			return x.handleInterrupted(ctx, err)
		case err != nil && x.req.Context().Err() == nil:
			x.endBroken(resp.StatusCode, x.failureFromError(ctx, err))
			panic(http.ErrAbortHandler) // closes the connection, so that the client detects the partial response
		case len(buf.B) > x.rt.limits.MaxBufferedResponse || full || x.headerSent || asItArrives && n > 0:
			x.unparsed = true
			if !asItArrives {
				x.startMasking()
			}
			if err == nil && x.writeToClient(resp, buf.B, time.Now()) {
				buf.B = buf.B[:0]
				continue
			}
			x.endCancelled()
			return true
		}
	}
}

// endWhole ends a response with its buffered bytes.
func (x *exchange) endWhole(resp *http.Response, rest []byte) (ended bool) {
	if !x.headerSent {
		if f := x.invalidResponse(resp, rest); f != nil {
			x.reportFailure(f)
			return false
		}
		x.answer.Whole(rest)
		x.rememberHolder()
		if x.hidesCache {
			rest = x.withoutCache(rest)
		}
		x.w.Header()["Content-Length"] = []string{strconv.Itoa(len(rest))}
		x.sendHeader(resp)
	}
	if x.unparsed && resp.StatusCode == http.StatusOK && x.endpoint.EstimatesTokens() {
		x.estimateTokens()
	}
	if x.masking {
		x.mask.Hide(rest)
	}
	x.extendWriteDeadline(time.Now())
	if _, err := x.w.Write(rest); err != nil {
		x.endCancelled()
		return true
	}
	x.endServed(resp.StatusCode, resp.StatusCode == http.StatusOK)
	return true
}
