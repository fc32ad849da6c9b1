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
	x.reservation, refused = x.rt.admitByQuota(&x.sender)
	return refused
}

// admitByQuota is exchange.admitByQuota for a sender. It replaces the sender's account if that was dropped since it
// was found. The reservation of a sender without an account is inactive.
func (r *Runtime) admitByQuota(o *sender) (quota.Reservation, *openai.Error) {
	for o.account != nil {
		reservation, denied := o.account.Admit(r.Elapsed())
		if denied != quota.Dropped {
			return reservation, o.errDenied(denied)
		}
		a, err := r.ledger.Reopen(o.account, r.Elapsed())
		if err != nil {
			return quota.Reservation{}, errManyUsers("user: ", err)
		}
		o.account = a
	}
	return quota.Reservation{}, nil
}

// reserveQuota reserves the expected tokens of the request and their cost.
func (x *exchange) reserveQuota() (refused *openai.Error) {
	x.price = x.rt.models.Load().price(x.model)
	if !x.reservation.SetPrice(x.price) {
		return errNotPriced(x.model)
	}
	return x.errDenied(x.reservation.Reserve(x.promptTokens, x.maxOutput, x.parallelAnswers, x.rt.Elapsed()))
}

// errNotPriced rejects a request whose cost could not be limited by a budget.
func errNotPriced(model string) *openai.Error {
	return &openai.Error{
		Status: http.StatusForbidden, Kind: openai.TypePermission, Code: "model_not_priced", Param: "model",
		Message: "model: " + openai.Clip([]byte(model)) + " has no price, and this key has a budget: use another model or ask the operator for a price of this model",
	}
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
	served := state == record.StateFinished && status == http.StatusOK || status == http.StatusSwitchingProtocols
	cancelledAtTarget := state == record.StateCancelled && x.current.target != ""
	if cancelledAtTarget || state == record.StateFailed {
		output = max(output, x.maxGenerated)
	}
	switch {
	case counted || output > 0 || ((served || cancelledAtTarget) && x.endpoint.EstimatesTokens()):
		prompt, cached := x.promptUsed()
		return telemetry.Usage{Requests: 1, PromptTokens: int64(prompt), CachedTokens: int64(cached), OutputTokens: int64(output)}.Priced(x.price)
	case served || cancelledAtTarget:
		return telemetry.Usage{Requests: 1}.Priced(x.price)
	}
	return telemetry.Usage{}
}

// setLimitHeaders writes the remaining limits of a client to the response's header.
func (x *exchange) setLimitHeaders(h http.Header) {
	if x.account != nil {
		x.account.WriteHeaders(h, x.rt.Elapsed())
	}
}

// errDenied is errDenied for the sender, which also learns the denial.
func (o *sender) errDenied(d *quota.Denial) *openai.Error {
	if d != nil && o.denied != nil {
		*o.denied = *d
	}
	return errDenied(d)
}

// errDenied returns the error for a request that exceeds the limits of its key, nil if d is nil.
func errDenied(d *quota.Denial) *openai.Error {
	if d == nil {
		return nil
	}
	return &openai.Error{Status: http.StatusTooManyRequests, Kind: d.Kind, Code: d.Code, Message: d.Message, RetryAfter: d.RetryAfter}
}

// KeyUsage returns each API key's usage of each model since this balancer started, sorted by name and
// model. Requests are counted at the balancer that received them from the client. A request that no
// engine served is not counted.
func (r *Runtime) KeyUsage() []telemetry.KeyUsage { return r.ledger.Usage() }

// TenantUsage returns the usage of each tenant that has limits, counted as in KeyUsage.
func (r *Runtime) TenantUsage() map[string]telemetry.Usage { return r.ledger.TenantUsage() }

// SetTenantQuotaUsage sets the usage of a tenant over all balancers. A tenant without limits is ignored.
func (r *Runtime) SetTenantQuotaUsage(name string, q telemetry.KeyQuota) {
	r.ledger.SetTenantQuotaUsage(name, q)
}

// TenantOf returns the tenant of a key or user; empty if it is unknown.
func (r *Runtime) TenantOf(key string) string { return r.ledger.TenantOf(key) }

// Limited returns the users and the tenants that have quotas or budgets.
func (r *Runtime) Limited() []telemetry.LimitedName { return r.ledger.Limited() }

// SetKeyQuotaUsage sets the usage of a key over all balancers. A name without a key is ignored.
func (r *Runtime) SetKeyQuotaUsage(name string, q telemetry.KeyQuota) {
	r.ledger.SetQuotaUsage(name, q)
}
