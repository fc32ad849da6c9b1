package lbd

import (
	"context"
	"net/http"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/lbd/batch"
	"skyserve/lbd/proxy"
)

// setUpBatches serves files and batches if there is a store.
func (b *balancer) setUpBatches() {
	if b.store == nil {
		return
	}
	o := b.opts.batches
	o.Store, o.Sender, o.Balancer, o.Logger, o.IdleTimeout = b.store, batchSender{b.runtime}, b.cfg.ID, b.log, b.limits().StallTimeout
	o.Price = b.tokenPrice
	b.batches = batch.New(o)
	b.registry.MustRegister(b.batches)
	b.runtime.SetBatches(func(w http.ResponseWriter, req *http.Request, c proxy.Caller) {
		b.batches.Serve(w, req, batch.Caller(c))
	})
}

// openBatches returns the batches that have not ended.
func (b *balancer) openBatches() (states []telemetry.BatchState) {
	if b.batches == nil {
		return nil
	}
	for _, r := range b.batches.OpenBatches() {
		c := r.Batch.RequestCounts
		state := telemetry.BatchState{
			ID: r.Batch.ID, Tenant: r.Tenant, Status: string(r.Batch.Status), Model: r.Batch.Model,
			Total: c.Total, Completed: c.Completed, Failed: c.Failed, CreatedAt: r.Created().UTC(), Deadline: r.Deadline().UTC(),
			RequestsPerSecond: r.RequestsPerSecond, CostUSD: r.Estimate.CostUSD, Backlog: []telemetry.BatchBacklog{},
		}
		if at := r.Estimate.FinishAt; at != nil {
			utc := at.UTC()
			state.FinishAt = &utc
		}
		if wait := r.Wait(time.Now()); wait != nil {
			until := time.Unix(wait.Until, 0).UTC()
			state.WaitsFor, state.WaitsUntil = wait.For, &until
		}
		for _, l := range r.Backlog {
			state.Backlog = append(state.Backlog, telemetry.BatchBacklog(l))
		}
		states = append(states, state)
	}
	return states
}

// tokenPrice returns the price of a requested model: that for clients, else that of its replicas.
func (b *balancer) tokenPrice(name string) (p batch.TokenPrice, known bool) {
	model, price, known := b.runtime.ModelPrice(name)
	if !known {
		return p, false
	}
	if price != nil {
		const tokens = 1e6
		return batch.TokenPrice{Input: price.Cost(tokens, 0, 0).USD() / tokens, Output: price.Cost(0, 0, tokens).USD() / tokens}, true
	}
	usd, known := b.review.newest().PromptTokenUSD(model, time.Now())
	return batch.TokenPrice{Input: usd}, known
}

// batchSender sends requests of batches through the balancer's own path.
type batchSender struct{ runtime *proxy.Runtime }

// Accepts reports whether a model can be requested.
func (s batchSender) Accepts(model string) bool { return s.runtime.AcceptsModel(model) }

// Replicas returns the number of ready replicas of a model.
func (s batchSender) Replicas(model string) int { return s.runtime.ReadyReplicas(model) }

// Send sends a request.
func (s batchSender) Send(ctx context.Context, r batch.Request) batch.Response {
	return batch.Response(s.runtime.ServeBatchRequest(ctx, proxy.BatchRequest{
		ID: r.ID, Path: r.Endpoint, Body: r.Body, Caller: proxy.Caller(r.Caller), Age: r.Age, Due: r.Due,
	}))
}
