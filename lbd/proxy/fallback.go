package proxy

import (
	"net/http"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/buffer"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/record"
)

// fallbackRule contains the models that serve requests of a model when it cannot.
type fallbackRule struct {
	models []string
	after  time.Duration // time in the queue after which a request goes to the next one
}

// minFallbackWait is the time that a request may wait in a fallback's queue even if it has already waited for
// the maximum time. A replica that is available admits a request within this time.
const minFallbackWait = time.Second

// fallback is the state of a request that its model could not serve. Other requests have none, so that it
// costs them no memory.
type fallback struct {
	model    string // the model that core places it for; empty = the requested one
	reason   string // why the requested model could not serve it
	next     int    // in fallbackRule.models
	rejected rejectedState
	external externalUse
}

// rejectedState is the state of a request when its own model rejected it, for the client's error if no
// fallback serves it.
type rejectedState struct {
	action   action
	attempt  action // the latest one
	failure  *failure
	hadFault bool
}

// fellBack reports whether core places the request for a fallback.
func (x *exchange) fellBack() bool { return x.fallback != nil && x.fallback.model != "" }

// noUsage is the usage of a request that a provider did not serve.
var noUsage telemetry.Usage

// placedModel returns the model that core places the request for.
func (x *exchange) placedModel() string {
	if x.fellBack() {
		return x.fallback.model
	}
	return x.model
}

// placedAdapter returns the adapter that the request needs; empty if it needs none.
func (x *exchange) placedAdapter() string {
	if x.fellBack() {
		return "" // fallbacks are models
	}
	return x.adapter
}

// fallbackWait returns the maximum time in the queue before the request goes to the next fallback; 0 =
// core's limit.
func (x *exchange) fallbackWait() time.Duration {
	rule, ok := x.rt.models.Load().fallbacks[x.model]
	if !ok || x.from != "" || !x.endpoint.FallsBack() || x.pinned || x.tier == service.TierDeferred {
		return 0
	}
	return rule.after
}

// fallBack submits a rejected request for the next model that may serve it. It returns false if there is
// none; then the client receives the error of the requested model.
func (x *exchange) fallBack() bool {
	rule, ok := x.rt.models.Load().fallbacks[x.model]
	if !ok || !x.mayFallBack() {
		return x.restoreRejection()
	}
	if x.fellBack() && x.lastFailure != nil {
		x.rt.recordFallbackFailure(x.model, x.lastFailure.cause)
	}
	if x.fallback == nil {
		x.fallback = &fallback{reason: x.latestAction.reason, rejected: rejectedState{x.latestAction, x.current, x.lastFailure, x.hadFault}}
	}
	for x.fallback.next < len(rule.models) {
		to := rule.models[x.fallback.next]
		x.fallback.next++
		if x.submitFallback(rule, to) {
			return true
		}
	}
	return x.restoreRejection()
}

// restoreRejection restores the rejection by the requested model. It returns false.
func (x *exchange) restoreRejection() bool {
	if x.fellBack() {
		s := x.fallback.rejected
		x.latestAction, x.current, x.lastFailure, x.hadFault, x.unconfirmed = s.action, s.attempt, s.failure, s.hadFault, nil
		x.fallback.model = ""
	}
	return false
}

// mayFallBack reports whether another model may serve a rejected request: nothing reached the client, and
// the cause is neither the request itself nor the client's credentials.
func (x *exchange) mayFallBack() bool {
	if x.headerSent || x.from != "" || x.pinned || x.body == nil || !x.endpoint.FallsBack() {
		return false
	}
	f := x.lastFailure
	if f != nil && (f.unconfirmed || f.refusal != nil && (f.refusal.status == http.StatusUnauthorized || f.refusal.status == http.StatusForbidden)) {
		return x.fellBack() // then the failure is the fallback's: the request was valid for its own model
	}
	switch x.latestAction.reason {
	case core.RejectNoReplica, core.RejectQueueFull, core.RejectWaitExceeded, core.RejectFailed,
		core.RejectRetriesExhausted, core.RejectRetryBudget, core.RejectRefused, core.RejectNoAdapter, core.RejectStartExceeded:
		return true
	}
	return false
}

// submitFallback submits the request for another model. It returns false if that is not possible now.
func (x *exchange) submitFallback(rule fallbackRule, to string) bool {
	now := x.rt.Elapsed()
	x.fallback.external.end(noUsage, now)
	name := to
	if e := x.rt.externalModel(to); e != nil {
		use, err := e.reserve(x.promptTokens, x.maxOutput, x.parallelAnswers, now)
		if err != nil {
			x.rt.log.Debug("fallback skipped", "request", x.inFlight.id, "model", x.model, "fallback", to, "err", err)
			x.rt.metrics.skipped.WithLabelValues(to).Inc()
			return false
		}
		x.fallback.external, name = use, e.model.Name
	}
	resolved := openai.ResolvedModel{Model: to}
	c, err := x.renameModel(name)
	if err != nil {
		x.rt.log.Debug("fallback skipped", "request", x.inFlight.id, "model", x.model, "fallback", to, "err", err)
		x.fallback.external.end(noUsage, now)
		return false
	}
	x.answer.Rendering.Release()
	x.answer.Rendering = openai.Render(x.rt.seedOf(x.tenant), x.endpoint, &c, resolved)
	x.answer.RemainingKeyBytes = x.rt.limits.MaxKeyedResponse
	x.fingerprint = c.Fingerprint(x.endpoint, resolved)
	x.fallback.model, x.lastFailure, x.hadFault, x.unconfirmed = to, nil, false, nil
	request := x.coreRequest("")
	request.ID, request.Fallback, request.MaxWait = x.inFlight.id, true, x.remainingWait(rule, now)
	x.rt.countFallback(x.model, to, x.fallback.reason)
	x.rt.log.Info("falling back to another model", "request", x.inFlight.id, "model", x.model, "fallback", to, "reason", x.fallback.reason)
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventArrived, Request: request}, func(d *record.RequestRecord) {
		x.inFlight.model, d.State = to, record.StateQueued
	})
	return true
}

// remainingWait returns the maximum time in the queue of a fallback: core's maximum minus the time since the
// request arrived. A deferred request may wait until its deadline: 0.
func (x *exchange) remainingWait(rule fallbackRule, now time.Duration) time.Duration {
	if x.tier == service.TierDeferred {
		return 0
	}
	wait := max(x.rt.maxWait()-(now-x.inFlight.arrived), minFallbackWait)
	if x.fallback.next < len(rule.models) {
		wait = min(wait, rule.after)
	}
	return wait
}

// maxWait returns the maximum time of a request in the queue.
func (r *Runtime) maxWait() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.coreCfg.MaxWait
}

// renameModel replaces the body by a copy with another model name: a transport may still be reading the
// former one.
func (x *exchange) renameModel(name string) (openai.Call, error) {
	c, err := openai.ReadCall(x.body.buf.B, x.rt.seed)
	if err != nil {
		return c, err
	}
	edits := []openai.Edit{c.RenameModel(name)}
	size := len(x.body.buf.B) + max(openai.Growth(edits, len(x.body.buf.B)), 0)
	mem := x.useMemory()
	if err := mem.Set(int64(buffer.SizeFor(size))); err != nil {
		return c, err
	}
	buf := buffer.Get(size)
	buf.B = openai.ApplyInPlace(append(buf.B, x.body.buf.B...), edits)
	x.body.release()
	x.body = newSharedBody(buf, mem)
	if c, err = openai.ReadCall(buf.B, x.rt.seed); err == nil {
		x.body.counts = c.Changes(x.endpoint, openai.ResolvedModel{Model: name}).Counts
	}
	return c, err
}

// endFallback ends the use of a provider with the request's usage.
func (x *exchange) endFallback() {
	if x.fallback == nil || x.fallback.external.external == nil {
		return
	}
	e := x.fallback.external.external
	used := x.computeUsage(http.StatusOK, record.StateFailed) // the tokens that the provider reported or sent
	if usd := x.fallback.external.end(used, x.rt.Elapsed()); usd > 0 {
		x.rt.metrics.providerUSD.WithLabelValues(e.name).Add(usd)
	}
}
