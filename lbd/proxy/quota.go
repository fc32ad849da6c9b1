package proxy

import (
	"net/http"

	"skyserve/internal/telemetry"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
	"skyserve/lbd/record"
)

// admitByQuota checks a client's request against the limits of its key.
func (x *exchange) admitByQuota() (refused *openai.Error) {
	if x.account == nil {
		return nil
	}
	reservation, denied := x.account.Admit(x.rt.Elapsed())
	x.reservation = reservation
	return errDenied(denied)
}

// releaseQuota releases the reservation of admitByQuota.
func (x *exchange) releaseQuota() {
	if x.reservation.Active() {
		x.reservation.Release(x.rt.Elapsed())
	}
}

// computeUsage returns the usage of a request at engines. If the engine did not report it, the estimate and
// the observed tokens count. For a response that was cancelled or interrupted, the tokens generated until
// then count. A request that no engine served used no tokens.
func (x *exchange) computeUsage(status int, state string) telemetry.Usage {
	u := &x.answer.Usage
	output := x.outputTokens()
	counted := u.Prompt.Known || u.Output.Known
	served := state == record.StateFinished && status == http.StatusOK
	remaining := state == record.StateCancelled && x.current.target != ""
	if remaining || state == record.StateFailed {
		output = max(output, x.maxGenerated)
	}
	switch {
	case counted || output > 0 || ((served || remaining) && x.endpoint.Generates()):
		prompt, cached := x.promptUsed()
		return telemetry.Usage{Requests: 1, PromptTokens: int64(prompt), CachedTokens: int64(cached), OutputTokens: int64(output)}
	case served || remaining:
		return telemetry.Usage{Requests: 1}
	}
	return telemetry.Usage{}
}

// setLimitHeaders writes the remaining limits of a client to the response's header.
func (x *exchange) setLimitHeaders(h http.Header) {
	if x.account != nil {
		x.account.WriteHeaders(h, x.rt.Elapsed())
	}
}

// errDenied returns the error for a request that exceeds the limits of its key, nil if d is nil.
func errDenied(d *quota.Denial) *openai.Error {
	if d == nil {
		return nil
	}
	return &openai.Error{Status: http.StatusTooManyRequests, Kind: d.Kind, Code: d.Code, Message: d.Message, RetryAfter: d.RetryAfter}
}

// KeyUsage returns each API key's usage of each model since this balancer started, sorted by name and
// model. Requests are counted at the balancer that received them from the client, and only if they
// were admitted.
func (r *Runtime) KeyUsage() []telemetry.KeyUsage { return r.ledger.Usage() }

// SetKeyQuota sets the usage of a key over all balancers. A name without a key is ignored.
func (r *Runtime) SetKeyQuota(name string, q telemetry.KeyQuota) { r.ledger.SetQuota(name, q) }
