package proxy

import (
	"fmt"
	"net/http"
	"time"

	"skyserve/lbd/buffer"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/record"
)

// How a stream ended whose target failed after the client had seen some of it.
const (
	continuedWhole     = "whole"     // nobody saw more of it than a pause
	continuedBroken    = "broken"    // other targets failed too
	continuedCancelled = "cancelled" // its client left meanwhile
	continuedRefused   = "refused"   // it could not be continued at all
)

// keepTranscript has the text of the answer kept for the case that its target fails.
func (x *exchange) keepTranscript() {
	if x.rt.noContinue.Load() || x.continueOff || len(x.body.buf.B) > x.rt.limits.MaxContinuedBody {
		return
	}
	x.transcriptMemory = x.hold()
	x.transcript.BytesLeft, x.transcript.Memory = x.rt.limits.MaxContinuedText, &x.transcriptMemory
	x.answer.Transcript = &x.transcript
}

// keepsTranscript says whether all of the answer so far is known and could be given to
// another target.
func (x *exchange) keepsTranscript() bool { return x.answer.Transcript != nil && !x.transcript.Lost() }

// mayContinue says whether another target can go on with the answer of the one at
// hand. Which engines a peer has only the peer knows, and looks.
func (x *exchange) mayContinue() bool {
	if !x.keepsTranscript() || x.body == nil {
		return false
	}
	r := x.sent.rank.replica
	return x.endpoint.AnyEngine || r == nil || len(x.transcript.Text()) == 0 || openai.ContinuesChats(r.cfg.Kind)
}

// extended says whether the request, as it is sent now, holds the beginning of
// its answer.
func (x *exchange) extended() bool {
	return x.continued || (x.splice != nil && x.splice.TokensInPrompt > 0)
}

// mayExtend says whether the replica at hand can go on with such an answer.
func (x *exchange) mayExtend() bool {
	return !x.extended() || x.endpoint.AnyEngine || openai.ContinuesChats(x.sent.rank.cfg.Kind)
}

// passed is how many tokens of the answer the client has: the engine's own count
// where it keeps telling it.
func (x *exchange) passed() int { return max(x.answer.Tokens, x.answer.Usage.Output.Or(0)) }

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
	case x.keepsTranscript() && (x.transcript.Ended() || (x.bound > 0 && x.passed() >= x.bound)):
		x.conclude(f)
		return true
	case x.mayContinue() && x.prepareContinuation():
		x.fail(f)
		return false
	}
	if x.splice == nil {
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

// prepareContinuation prepares the request for the rest of the answer; false where there can be
// none.
func (x *exchange) prepareContinuation() bool {
	soFar, tokens := x.transcript.Text(), x.passed()
	if !x.countKnown() {
		return false
	}
	var space []byte
	if !x.endpoint.AnyEngine {
		// Chat templates trim messages; an engine whose template does would say the
		// white space again, one whose template does not would not.
		soFar, space = openai.SplitSpace(soFar)
	}
	if len(soFar) == 0 {
		tokens = 0 // the answer is asked for anew, all of it
	}
	mem := x.hold()
	if mem.Set(int64(len(x.body.buf.B)+len(soFar)+openai.ContinuationOverhead)) != nil {
		return false
	}
	counts := x.body.counts
	body, ok := openai.ContinuationBody(x.endpoint, x.body.buf.B, soFar, tokens, x.impliedBound(), &counts)
	if !ok {
		mem.Release()
		return false
	}
	x.answer.Tokens, x.answer.Exact = tokens, true // as far as it matters
	next := openai.NewSplice(&x.transcript, soFar, space, tokens)
	next.HidesCounts, next.Prompt = x.hideCounts, x.answer.Usage.Prompt
	if x.splice != nil && !next.Prompt.Known {
		next.Prompt = x.splice.Prompt
	}
	if x.restBody != nil {
		x.restBody.release()
	}
	x.splice, x.restBody = next, share(&buffer.Buffer{B: body}, mem)
	x.restBody.counts = counts
	return true
}

// begin forgets what the try before told of its end, and of itself where the
// client has seen nothing of it.
func (x *exchange) begin() {
	x.answer.BeginTry()
	x.talks, x.peerKills = false, 0
	if !x.wrote {
		x.transcript.Release()
		x.transcript = openai.Transcript{BytesLeft: x.rt.limits.MaxContinuedText, Memory: &x.transcriptMemory}
	}
}

// conclude ends a stream whose answer is complete and which lacks its end only.
func (x *exchange) conclude(f *failure) {
	x.path.failed(f.cause)
	x.sent.failed(f.why)
	x.rt.log.Warn("an answer was complete when its target failed", "request", x.inFlight.id, "target", x.sent.target, "cause", f.cause, "error", f.err)
	if !x.put(nil, x.transcript.Ending(x.endpoint), time.Now()) {
		x.cancelled()
		return
	}
	if x.splice == nil {
		x.continuation(continuedWhole)
	}
	x.finished(http.StatusOK, true)
}

// refusesContinuation says whether a status tells that the request for the rest of an
// answer cannot be: as where a template does not show the message that is to be
// continued (vLLM answers 400). Any other replica of the model would say the same.
func refusesContinuation(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity
}

// declined ends a stream whose rest was asked for in vain.
func (x *exchange) declined(f *failure) {
	x.breakOff(f.cause, codeBroken, func() { x.broke(http.StatusOK, f) })
}

// abandoned ends a stream that was to be continued when core finds no target for
// that any more.
func (x *exchange) abandoned(v action) {
	reason := v.reason
	if v.kind == core.ActionBounce {
		reason = core.RejectNoReplica
	}
	cause := x.last.cause + "; going on elsewhere: " + rejection(reason, nil).Message
	x.continuation(continuedBroken)
	if x.from != "" && v.kills > 0 {
		x.put(nil, killsComment(v.kills), time.Now()) // nothing is to be done if the peer is gone
	}
	code := codeBroken
	if reason == core.RejectKills {
		code = reason
	}
	x.breakOff(cause, code, func() { x.end(http.StatusOK, record.StateFailed) })
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
	e := openai.Error{Kind: openai.TypeServer, Code: code, Message: "the answer broke off: " + cause}
	return e.Event(!x.endpoint.EndsInDone)
}
