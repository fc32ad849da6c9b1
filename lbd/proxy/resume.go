package proxy

import (
	"context"
	"net/http"
	"time"

	"skyserve/internal/printable"
	"skyserve/lbd/buffer"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/record"
)

// To continue the response of a chat, an engine has to continue the assistant's last message instead of
// beginning a new one. Not every engine does so: see proof.go. Every engine can continue a text completion
// (openai.Endpoint.AnyEngine), because its prompt is plain text.

// Outcomes of a stream whose target failed after the client had received part of it.
const (
	continuedWhole     = "whole"     // completed; the client noticed only a delay
	continuedBroken    = "broken"    // other targets failed too
	continuedCancelled = "cancelled" // its client disconnected meanwhile
	continuedRefused   = "refused"   // it could not be continued
	continuedUnproven  = "unproven"  // no available engine was proven to continue the chat
)

// startTranscript starts recording the text of the response in case its target fails.
func (x *exchange) startTranscript() {
	if x.rt.noContinue.Load() || x.continueOff || len(x.body.buf.B) > x.rt.limits.MaxContinuedBody {
		return
	}
	x.transcriptMemory = x.useMemory()
	x.transcript.RemainingBytes, x.transcript.Memory = x.rt.limits.MaxContinuedText, &x.transcriptMemory
	x.answer.Transcript = &x.transcript
}

// hasTranscript reports whether the whole response so far is recorded and can be sent to another
// target.
func (x *exchange) hasTranscript() bool { return x.answer.Transcript != nil && !x.transcript.Lost() }

// mayContinue reports whether another target can continue the response of the current one. A peer
// checks this itself, for its own engines.
func (x *exchange) mayContinue() bool { return x.hasTranscript() && x.body != nil && x.mayBeProven() }

// mayBeProven reports whether a target may exist that is proven to continue the response.
func (x *exchange) mayBeProven() bool {
	r := x.current.rank.replica
	return x.endpoint.AnyEngine || r == nil || len(x.transcript.Text()) == 0 || x.rt.mayBeContinued(r)
}

// isContinuation reports whether the request, as currently sent, contains the start of its response.
func (x *exchange) isContinuation() bool {
	return x.continued || (x.splice != nil && x.splice.TokensInPrompt > 0)
}

// proveContinuationHere returns nil unless the request is a continuation of a chat and the current replica is
// not proven to continue one.
func (x *exchange) proveContinuationHere(ctx context.Context) error {
	switch {
	case !x.isContinuation():
		return nil
	case x.current.rank.external != nil:
		return errNoProof{"answers of providers are not continued"}
	case x.endpoint.AnyEngine:
		return nil
	case x.rt.noContinue.Load():
		return errNoProof{"continuation is turned off"}
	}
	var key []string
	if !x.keysRequired {
		key = x.req.Header["Authorization"] // as in outgoing
	}
	return x.rt.proveContinuation(ctx, x.current.rank.replica, key)
}

// tokensDelivered returns the number of tokens of the response that the client has received: the engine's own
// count if it is reported continuously.
func (x *exchange) tokensDelivered() int { return max(x.answer.Tokens, x.answer.Usage.Output.Or(0)) }

// handleStreamFailure handles a stream whose target failed midway. It reports whether the request has ended; if
// not, another target will continue it.
func (x *exchange) handleStreamFailure(f *failure) (ended bool) {
	if n := x.tokensDelivered(); n > 0 {
		f.cause += " after " + printable.Count(n, "token")
	}
	switch {
	case !x.headerSent:
		x.reportFailure(f)
		return false
	case x.hasTranscript() && (x.transcript.Ended() || (x.maxOutput > 0 && x.tokensDelivered() >= x.maxOutput)):
		x.endComplete(f)
		return true
	case x.mayContinue() && x.prepareContinuation():
		x.reportFailure(f)
		return false
	}
	if x.splice == nil {
		x.countContinuation(x.refusedOutcome())
	}
	x.endInterrupted(f.cause, codeBroken, func() { x.endBroken(http.StatusOK, f) })
	return true
}

// refusedOutcome returns the outcome of a stream that is not continued.
func (x *exchange) refusedOutcome() string {
	if x.hasTranscript() && x.body != nil && !x.mayBeProven() {
		return continuedUnproven
	}
	return continuedRefused
}

// prepareContinuation prepares the request for the remainder of the response. It returns false if
// that is not possible.
func (x *exchange) prepareContinuation() bool {
	soFar, tokens := x.transcript.Text(), x.tokensDelivered()
	if !x.countKnown() {
		return false
	}
	var space []byte
	if !x.endpoint.AnyEngine {
		// Some chat templates trim messages. Then the engine generates the white space again,
		// otherwise it does not.
		soFar, space = openai.SplitSpace(soFar)
	}
	if len(soFar) == 0 {
		tokens = 0 // the whole response is requested again
	}
	mem := x.useMemory()
	if mem.Set(int64(len(x.body.buf.B)+len(soFar)+openai.ContinuationOverhead)) != nil {
		return false
	}
	counts := x.body.counts
	body, ok := openai.ContinuationBody(x.endpoint, x.body.buf.B, soFar, tokens, x.impliedBound(), &counts)
	if !ok {
		mem.Release()
		return false
	}
	x.answer.Tokens, x.answer.Exact = tokens, true // the count is exact enough for a continuation
	next := openai.NewSplice(&x.transcript, soFar, space, tokens)
	if !x.endpoint.AnyEngine {
		next.GuardRestart(soFar)
	}
	next.HidesCounts, next.Prompt = x.hideUsageSoFar, x.answer.Usage.Prompt
	if x.splice != nil && !next.Prompt.Known {
		next.Prompt = x.splice.Prompt
	}
	if x.continuationBody != nil {
		x.continuationBody.release()
	}
	x.splice, x.continuationBody = next, newSharedBody(&buffer.Buffer{B: body}, mem)
	x.continuationBody.counts = counts
	return true
}

// resetAttempt clears how the previous attempt ended, and its text if the client has not received any of it.
func (x *exchange) resetAttempt() {
	x.answer.BeginTry()
	x.sentToken, x.peerKills = false, 0
	if !x.headerSent {
		x.transcript.Release()
		x.transcript = openai.Transcript{RemainingBytes: x.rt.limits.MaxContinuedText, Memory: &x.transcriptMemory}
	}
}

// endComplete ends a stream whose response is complete except for the end marker.
func (x *exchange) endComplete(f *failure) {
	x.spans.setFailure(f.cause)
	x.current.countFailure(f.kind)
	x.rt.log.Warn("response was complete when its target failed", append([]any{"request", x.inFlight.id, "target", x.current.target}, f.logArgs()...)...)
	if !x.writeToClient(nil, x.transcript.Ending(x.endpoint), time.Now()) {
		x.endCancelled()
		return
	}
	if x.splice == nil {
		x.countContinuation(continuedWhole)
	}
	x.endServed(http.StatusOK, true)
}

// refusesContinuation reports whether a status means that the request for the remainder of a response
// is invalid. For example, a template does not render the message to continue (vLLM returns 400). Any
// other replica of the model would return the same.
func refusesContinuation(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity
}

// endDeclined ends a stream whose continuation was rejected.
func (x *exchange) endDeclined(f *failure) {
	x.endInterrupted(f.cause, codeBroken, func() { x.endBroken(http.StatusOK, f) })
}

// endAbandonedStream ends a stream for whose continuation core found no target.
func (x *exchange) endAbandonedStream(v action) {
	reason := v.reason
	if v.kind == core.ActionBounce {
		reason = core.RejectNoReplica
	}
	cause := x.lastFailure.cause + "; continuation failed: " + rejection(reason, nil).Message
	outcome := continuedBroken
	if x.lastFailure.unproven {
		outcome = continuedUnproven
	}
	x.countContinuation(outcome)
	if x.from != "" && v.kills > 0 {
		x.writeToClient(nil, killsComment(v.kills), time.Now()) // an error means that the peer disconnected
	}
	code := codeBroken
	if reason == core.RejectKills {
		code = reason
	}
	x.endInterrupted(cause, code, func() { x.finalize(http.StatusOK, record.StateFailed) })
}

// endInterrupted ends a stream that no target will continue; end does the accounting. A client receives an
// error event. A peer is disconnected, so that it can continue the response itself.
func (x *exchange) endInterrupted(cause, code string, end func()) {
	if x.from != "" {
		end()
		panic(http.ErrAbortHandler) // closes the connection, as in relayWhole
	}
	x.writeToClient(nil, x.errorEvent(cause, code), time.Now()) // an error means that the client disconnected; the request ends in the same way
	end()
}

// countContinuation counts the outcome of a stream whose target failed. A stream for a peer is not counted
// if it was not continued, because the peer may continue it.
func (x *exchange) countContinuation(outcome string) {
	if x.from != "" && (outcome == continuedBroken || outcome == continuedRefused || outcome == continuedUnproven) {
		return
	}
	x.rt.metrics.continued.WithLabelValues(outcome).Inc()
}

// codeBroken is the error code of an interrupted response.
const codeBroken = "replica_failed"

// errorEvent returns the last event of an interrupted stream.
func (x *exchange) errorEvent(cause, code string) []byte {
	e := openai.Error{Kind: openai.TypeServer, Code: code, Message: "the response was interrupted: " + cause}
	if code == codeBroken {
		e.Message += "; send the request again"
	}
	return x.endpoint.ErrorEvent(&e, x.inFlight.id)
}
