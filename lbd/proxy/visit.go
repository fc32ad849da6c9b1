package proxy

import (
	"net/http"

	"skyserve/internal/telemetry"
)

// checkIn lets a client's request in by the limits of its key.
func (x *exchange) checkIn() (refused *apiError) {
	if x.account == nil {
		return nil
	}
	x.visit, refused = x.account.enter(x.rt.Elapsed())
	return refused
}

// checkOut ends what checkIn began.
func (x *exchange) checkOut() {
	if x.visit.account != nil {
		x.visit.leave(x.rt.Elapsed())
	}
}

// used is what a request used of engines. Where one that served it did not say how
// much, the estimate counts and what was seen pass; of an answer that its client did
// not wait for, or that broke off, what was generated until then. A request that no
// engine served used nothing.
func (x *exchange) used(status int, state string) telemetry.Usage {
	u := &x.answer.usage
	output := x.outputTokens()
	counted := u.prompt.Known || u.output.Known
	served := state == stateFinished && status == http.StatusOK
	left := state == stateCancelled && x.sent.target != ""
	if left || state == stateFailed {
		output = max(output, x.generated)
	}
	switch {
	case counted || output > 0 || ((served || left) && x.endpoint.generates()):
		prompt, cached := x.promptUsed()
		return telemetry.Usage{Requests: 1, PromptTokens: int64(prompt), CachedTokens: int64(cached), OutputTokens: int64(output)}
	case served || left:
		return telemetry.Usage{Requests: 1}
	}
	return telemetry.Usage{}
}

// generates says whether the endpoint makes an engine compute, rather than look
// a prompt's tokens up.
func (e *endpoint) generates() bool { return e.path != "/tokenize" }

// announce writes what is left of a client's limits into the answer's header.
func (x *exchange) announce(h http.Header) {
	if x.account != nil {
		x.account.announce(h, x.rt.Elapsed())
	}
}
