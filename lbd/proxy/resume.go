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

// Outcomes of a stream whose target failed after the client had received part of it.
const (
	continuedWhole     = "whole"     // completed; the client saw only a delay
	continuedBroken    = "broken"    // other targets failed too
	continuedCancelled = "cancelled" // its client disconnected meanwhile
	continuedRefused   = "refused"   // it could not be continued
)

// keepTranscript starts recording the text of the response in case its target fails.
func (x *exchange) keepTranscript() {
	if x.rt.noContinue.Load() || x.continueOff || len(x.body.buf.B) > x.rt.limits.MaxContinuedBody {
		return
	}
	x.transcriptMemory = x.hold()
	x.transcript.BytesLeft, x.transcript.Memory = x.rt.limits.MaxContinuedText, &x.transcriptMemory
	x.answer.Transcript = &x.transcript
}

// keepsTranscript reports whether the whole response so far is recorded and can be sent to another
// target.
func (x *exchange) keepsTranscript() bool { return x.answer.Transcript != nil && !x.transcript.Lost() }

// mayContinue reports whether another target can continue the response of the current one. Only a peer
// knows and checks which engines it has.
func (x *exchange) mayContinue() bool {
	if !x.keepsTranscript() || x.body == nil {
		return false
	}
	r := x.sent.rank.replica
	return x.endpoint.AnyEngine || r == nil || len(x.transcript.Text()) == 0 || openai.ContinuesChats(r.cfg.Kind)
}

// extended reports whether the request, as currently sent, contains the start of its response.
func (x *exchange) extended() bool {
	return x.continued || (x.splice != nil && x.splice.TokensInPrompt > 0)
}

// mayExtend reports whether the current replica can continue such a response.
func (x *exchange) mayExtend() bool {
	return !x.extended() || x.endpoint.AnyEngine || openai.ContinuesChats(x.sent.rank.cfg.Kind)
}

// passed returns how many tokens of the response the client has received: the engine's own count if it
// reports it continuously.
func (x *exchange) passed() int { return max(x.answer.Tokens, x.answer.Usage.Output.Or(0)) }

// severed handles a stream whose target failed midway. It reports whether the request has ended; if
// not, another target will continue it.
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

// prepareContinuation prepares the request for the rest of the response. It returns false if that is
// not possible.
func (x *exchange) prepareContinuation() bool {
	soFar, tokens := x.transcript.Text(), x.passed()
	if !x.countKnown() {
		return false
	}
	var space []byte
	if !x.endpoint.AnyEngine {
		// Chat templates trim messages. An engine whose template trims would generate the white space
		// again; one whose template does not would not.
		soFar, space = openai.SplitSpace(soFar)
	}
	if len(soFar) == 0 {
		tokens = 0 // the whole response is requested again
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

// begin resets the end of the previous attempt, and its content if the client has received nothing of
// it.
func (x *exchange) begin() {
	x.answer.BeginTry()
	x.talks, x.peerKills = false, 0
	if !x.wrote {
		x.transcript.Release()
		x.transcript = openai.Transcript{BytesLeft: x.rt.limits.MaxContinuedText, Memory: &x.transcriptMemory}
	}
}

// conclude ends a stream whose response is complete except for the end marker.
func (x *exchange) conclude(f *failure) {
	x.path.failed(f.cause)
	x.sent.failed(f.why)
	x.rt.log.Warn("response was complete when its target failed", "request", x.inFlight.id, "target", x.sent.target, "cause", f.cause, "error", f.err)
	if !x.put(nil, x.transcript.Ending(x.endpoint), time.Now()) {
		x.cancelled()
		return
	}
	if x.splice == nil {
		x.continuation(continuedWhole)
	}
	x.finished(http.StatusOK, true)
}

// refusesContinuation reports whether a status means that the request for the rest of a response is
// invalid: for example if a template does not render the message that is to be continued (vLLM returns
// 400). Any other replica of the model would return the same.
func refusesContinuation(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity
}

// declined ends a stream whose continuation was rejected.
func (x *exchange) declined(f *failure) {
	x.breakOff(f.cause, codeBroken, func() { x.broke(http.StatusOK, f) })
}

// abandoned ends a stream that was to be continued when core finds no target for it.
func (x *exchange) abandoned(v action) {
	reason := v.reason
	if v.kind == core.ActionBounce {
		reason = core.RejectNoReplica
	}
	cause := x.last.cause + "; continuation failed: " + rejection(reason, nil).Message
	x.continuation(continuedBroken)
	if x.from != "" && v.kills > 0 {
		x.put(nil, killsComment(v.kills), time.Now()) // nothing to do if the peer has disconnected
	}
	code := codeBroken
	if reason == core.RejectKills {
		code = reason
	}
	x.breakOff(cause, code, func() { x.end(http.StatusOK, record.StateFailed) })
}

// breakOff ends a stream that no target will continue; end does the accounting. A client gets an error
// event. A peer is disconnected instead, so that it can continue the response itself.
func (x *exchange) breakOff(cause, code string, end func()) {
	if x.from != "" {
		end()
		panic(http.ErrAbortHandler) // closes the connection, as in relayWhole
	}
	x.put(nil, x.errorEvent(cause, code), time.Now()) // if the client has disconnected too, the request ends the same way
	end()
}

// continuation counts the outcome of a stream whose target failed. If a balancer could not continue it
// for a peer, the peer may.
func (x *exchange) continuation(outcome string) {
	if x.from != "" && (outcome == continuedBroken || outcome == continuedRefused) {
		return
	}
	x.rt.metrics.continued.WithLabelValues(outcome).Inc()
}

// codeBroken is the error code of an interrupted response.
const codeBroken = "replica_failed"

// errorEvent returns the last event of an interrupted stream.
func (x *exchange) errorEvent(cause, code string) []byte {
	e := openai.Error{Kind: openai.TypeServer, Code: code, Message: "the response was interrupted: " + cause}
	return e.Event(!x.endpoint.EndsInDone)
}
