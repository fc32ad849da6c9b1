package proxy

import (
	"net/http"

	"skyserve/internal/telemetry"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
	"skyserve/lbd/record"
)

// admitByQuota lets a client's request in by the limits of its key.
func (x *exchange) admitByQuota() (refused *openai.Error) {
	if x.account == nil {
		return nil
	}
	reservation, denied := x.account.Admit(x.rt.Elapsed())
	x.reservation = reservation
	return errDenied(denied)
}

// releaseQuota ends what admitByQuota began.
func (x *exchange) releaseQuota() {
	if x.reservation.Active() {
		x.reservation.Release(x.rt.Elapsed())
	}
}

// used is what a request used of engines. Where one that served it did not say how
// much, the estimate counts and what was seen pass; of an answer that its client did
// not wait for, or that broke off, what was generated until then. A request that no
// engine served used nothing.
func (x *exchange) used(status int, state string) telemetry.Usage {
	u := &x.answer.Usage
	output := x.outputTokens()
	counted := u.Prompt.Known || u.Output.Known
	served := state == record.StateFinished && status == http.StatusOK
	left := state == record.StateCancelled && x.sent.target != ""
	if left || state == record.StateFailed {
		output = max(output, x.generated)
	}
	switch {
	case counted || output > 0 || ((served || left) && x.endpoint.Generates()):
		prompt, cached := x.promptUsed()
		return telemetry.Usage{Requests: 1, PromptTokens: int64(prompt), CachedTokens: int64(cached), OutputTokens: int64(output)}
	case served || left:
		return telemetry.Usage{Requests: 1}
	}
	return telemetry.Usage{}
}

// announce writes what is left of a client's limits into the answer's header.
func (x *exchange) announce(h http.Header) {
	if x.account != nil {
		x.account.WriteHeaders(h, x.rt.Elapsed())
	}
}

// errDenied answers a request that the limits of its key do not let in; nil where they do.
func errDenied(d *quota.Denial) *openai.Error {
	if d == nil {
		return nil
	}
	return &openai.Error{Status: http.StatusTooManyRequests, Kind: d.Kind, Code: d.Code, Message: d.Message, RetryAfter: d.RetryAfter}
}

// KeyUsage is what each API key used of each model since this balancer began,
// sorted by name and model. Requests count at the balancer that their client
// asked, and only those that were let in.
func (r *Runtime) KeyUsage() []telemetry.KeyUsage { return r.ledger.Usage() }

// SetKeyQuota sets what a key has used, all balancers together. A name that no
// key has is ignored.
func (r *Runtime) SetKeyQuota(name string, q telemetry.KeyQuota) { r.ledger.SetQuota(name, q) }
