package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"time"

	"skyserve/lbd/core"
)

// How a stream ended whose target failed after the client had seen some of it.
const (
	continuedWhole     = "whole"     // nobody saw more of it than a pause
	continuedBroken    = "broken"    // other targets failed too
	continuedCancelled = "cancelled" // its client left meanwhile
	continuedRefused   = "refused"   // it could not be continued at all
)

// listen has the text of the answer kept for the case that its target fails.
func (x *exchange) listen() {
	if x.rt.noContinue.Load() || x.continueOff || len(x.body.buf.b) > x.rt.limits.MaxContinuedBody {
		return
	}
	x.spoken.room, x.spoken.held = x.rt.limits.MaxContinuedText, x.hold()
	x.answer.spoken = &x.spoken
}

// listens says whether all of the answer so far is known and could be given to
// another target.
func (x *exchange) listens() bool { return x.answer.spoken != nil && !x.spoken.lost }

// mayContinue says whether another target can go on with the answer of the one at
// hand. Which engines a peer has only the peer knows, and looks.
func (x *exchange) mayContinue() bool {
	if !x.listens() || x.body == nil {
		return false
	}
	r := x.sent.rank.replica
	return x.endpoint.anyEngine || r == nil || len(x.spoken.soFar()) == 0 || continuesChats(r.cfg.Kind)
}

// extended says whether the request, as it is sent now, holds the beginning of
// its answer.
func (x *exchange) extended() bool { return x.continued || (x.seam != nil && x.seam.prompted > 0) }

// mayExtend says whether the replica at hand can go on with such an answer.
func (x *exchange) mayExtend() bool {
	return !x.extended() || x.endpoint.anyEngine || continuesChats(x.sent.rank.cfg.Kind)
}

// passed is how many tokens of the answer the client has: the engine's own count
// where it keeps telling it.
func (x *exchange) passed() int { return max(x.answer.tokens, x.answer.usage.output.Or(0)) }

// severed handles a stream whose target failed in the middle. It says whether the
// request has ended; if not, another target is to go on.
func (x *exchange) severed(f *failure) (ended bool) {
	if n := x.passed(); n > 0 {
		f.cause += fmt.Sprintf(" after %d %s", n, plural(n, "token"))
	}
	switch {
	case !x.wrote:
		x.fail(f)
		return false
	case x.listens() && (x.spoken.ended || (x.bound > 0 && x.passed() >= x.bound)):
		x.conclude(f)
		return true
	case x.mayContinue() && x.goOn():
		x.fail(f)
		return false
	}
	if x.seam == nil {
		x.continuation(continuedRefused)
	}
	x.breakOff(f.cause, codeBroken, func() { x.broke(http.StatusOK, f) })
	return true
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// goOn prepares the request for the rest of the answer; false where there can be
// none.
func (x *exchange) goOn() bool {
	said, tokens := x.spoken.soFar(), x.passed()
	if !x.countKnown() {
		return false
	}
	var space []byte
	if !x.endpoint.anyEngine {
		// Chat templates trim messages; an engine whose template does would say the
		// white space again, one whose template does not would not.
		said, space = splitSpace(said)
	}
	if len(said) == 0 {
		tokens = 0 // the answer is asked for anew, all of it
	}
	mem := x.hold()
	if mem.set(int64(len(x.body.buf.b)+len(said)+addedByContinuing)) != nil {
		return false
	}
	counts := x.body.counts
	body, ok := continuation(x.endpoint, x.body.buf.b, said, tokens, x.impliedBound(), &counts)
	if !ok {
		mem.release()
		return false
	}
	x.answer.tokens, x.answer.exact = tokens, true // as far as it matters
	next := &seam{quiet: x.hideCounts, head: x.spoken.head, role: x.spoken.role, said: tokens, prompt: x.answer.usage.prompt, space: bytes.Clone(space)}
	if len(said) > 0 {
		next.prompted = tokens
	}
	if x.seam != nil && !next.prompt.Known {
		next.prompt = x.seam.prompt
	}
	if x.rest != nil {
		x.rest.release()
	}
	x.seam, x.rest = next, share(&pooled{b: body}, mem)
	x.rest.counts = counts
	return true
}

// begin forgets what the try before told of its end, and of itself where the
// client has seen nothing of it.
func (x *exchange) begin() {
	a := &x.answer
	a.usage, a.done, a.failed, a.faulty = usage{}, false, false, false
	a.events = 0
	x.talks, x.peerKills = false, 0
	if !x.wrote {
		x.spoken.release()
		x.spoken = spoken{room: x.rt.limits.MaxContinuedText, held: x.spoken.held}
	}
}

// conclude ends a stream whose answer is complete and which lacks its end only.
func (x *exchange) conclude(f *failure) {
	x.path.failed(f.cause)
	x.sent.failed(f.why)
	x.rt.log.Warn("an answer was complete when its target failed", "request", x.flight.id, "target", x.sent.target, "cause", f.cause, "error", f.err)
	if !x.put(nil, x.ending(), time.Now()) {
		x.cancelled()
		return
	}
	if x.seam == nil {
		x.continuation(continuedWhole)
	}
	x.finished(http.StatusOK, true)
}

// ending is what the client has not seen of a stream whose answer is complete.
func (x *exchange) ending() []byte {
	s := &x.spoken
	var b []byte
	if !s.ended {
		b = append(b, "data: {"...)
		for _, m := range []struct {
			name  string
			value []byte
		}{{`"id":`, s.head.id}, {`"created":`, s.head.created}, {`"model":`, s.head.model}} {
			if m.value != nil {
				b = append(append(append(b, m.name...), m.value...), ',')
			}
		}
		b = append(append(b, x.endpoint.full...), "}\n\n"...)
	}
	if !s.closed {
		b = append(b, "data: [DONE]\n\n"...)
	}
	return b
}

// refusesToGoOn says whether a status tells that the request for the rest of an
// answer cannot be: as where a template does not show the message that is to be
// continued (vLLM answers 400). Any other replica of the model would say the same.
func refusesToGoOn(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity
}

// declined ends a stream whose rest was asked for in vain.
func (x *exchange) declined(f *failure) {
	x.breakOff(f.cause, codeBroken, func() { x.broke(http.StatusOK, f) })
}

// abandoned ends a stream that was to be continued when core finds no target for
// that any more.
func (x *exchange) abandoned(v verdict) {
	reason := v.reason
	if v.kind == core.ActionBounce {
		reason = core.RejectNoReplica
	}
	cause := x.last.cause + "; going on elsewhere: " + rejection(reason, nil).message
	x.continuation(continuedBroken)
	if x.from != "" && v.kills > 0 {
		x.put(nil, killsComment(v.kills), time.Now()) // nothing is to be done if the peer is gone
	}
	code := codeBroken
	if reason == core.RejectKills {
		code = reason
	}
	x.breakOff(cause, code, func() { x.end(http.StatusOK, stateFailed) })
}

// breakOff ends a stream that nobody goes on with, and settles it by end. A client
// is told in an error event. A peer is not told but cut off, so that it can go on
// with the answer itself.
func (x *exchange) breakOff(cause, code string, end func()) {
	if x.from != "" {
		end()
		panic(http.ErrAbortHandler) // cuts the connection, as in relayWhole
	}
	x.put(nil, x.errorEvent(cause, code), time.Now()) // should the client be gone too, the request ends the same
	end()
}

// continuation counts how a stream ended whose target failed. What a balancer
// could not go on with for another one, that one may.
func (x *exchange) continuation(outcome string) {
	if x.from != "" && (outcome == continuedBroken || outcome == continuedRefused) {
		return
	}
	x.rt.metrics.continued.WithLabelValues(outcome).Inc()
}

// codeBroken is the error code of an answer that broke off.
const codeBroken = "replica_failed"

// errorEvent is what a broken stream ends in.
func (x *exchange) errorEvent(cause, code string) []byte {
	e := apiError{kind: typeServer, code: code, message: "the answer broke off: " + cause}
	event := "data: " + string(e.body()) + "\n\n"
	if !x.endpoint.done {
		event = "event: error\n" + event
	}
	return []byte(event)
}
