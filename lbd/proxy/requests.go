package proxy

import (
	"time"

	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// summaryBatch is how many records are summarized under the runtime's lock at a time. It limits the
// time for which a decision waits for a reader of requests.
const summaryBatch = 32

// Requests returns summaries of the newest stored requests, at most limit, newest first. An id that
// was used several times appears several times. Each summary is consistent, but they are not taken at
// the same moment.
func (r *Runtime) Requests(limit int) []telemetry.RequestSummary {
	records := make([]*record.RequestRecord, max(0, min(limit, r.limits.MaxDecisions)))
	r.mu.Lock()
	records = records[:r.ring.newest(records)]
	r.mu.Unlock()
	rows := make([]telemetry.RequestSummary, len(records))
	for from := 0; from < len(records); from += summaryBatch {
		to := min(from+summaryBatch, len(records))
		r.summarize(rows[from:to], records[from:to])
	}
	return rows
}

// newest fills records, which may have as many elements as slots, with the newest entries, newest
// first, and returns their number.
func (g *ring) newest(records []*record.RequestRecord) int {
	for i := range records {
		d := g.slots[(g.next-1-i+len(g.slots))%len(g.slots)]
		if d == nil {
			return i
		}
		records[i] = d
	}
	return len(records)
}

// summarize summarizes a batch of records under one lock.
func (r *Runtime) summarize(rows []telemetry.RequestSummary, records []*record.RequestRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, policy := r.Elapsed(), r.coreCfg.Policy.Name()
	for i, d := range records {
		age := time.Duration(0)
		if f := r.inFlight[d.Request]; f != nil && f.entry == d {
			age = now - f.arrived
		}
		rows[i] = summaryOf(d, age, policy)
	}
}

// summaryOf summarizes a record. age is the time since the request arrived, and policy is the
// current policy. Both are used for a queued request.
func summaryOf(d *record.RequestRecord, age time.Duration, policy string) telemetry.RequestSummary {
	s := telemetry.RequestSummary{
		Request: d.Request, At: d.At, Balancer: d.Balancer, Region: d.Region, Model: d.Model, Tier: d.Tier, Tenant: d.Tenant, From: d.From,
		State: d.State, Status: d.Status, PromptBytes: d.PromptBytes, Tries: len(d.Attempts),
		TTFTMillis: d.TTFTMillis, E2EMillis: d.E2EMillis,
		PromptTokens: d.PromptTokens, CachedTokens: d.CachedTokens, OutputTokens: d.OutputTokens,
	}
	requeuedAt := 0.0 // time at which it was queued again
	for i := range d.Attempts {
		t := &d.Attempts[i]
		s.Reason, s.QueuedMillis = t.Reason, t.AtMillis-requeuedAt
		if t.Kind == core.ActionDispatch || t.Kind == core.ActionForward {
			s.Target, s.Forwarded = t.Target, t.Kind == core.ActionForward
		}
		if t.Decision != nil {
			s.Policy, s.MatchBytes = t.Decision.Policy, t.Decision.MatchBytes
		}
		if t.EndedMillis != nil {
			requeuedAt = *t.EndedMillis
		}
	}
	if isQueued(d) {
		s.State, s.QueuedMillis, s.Policy, s.Reason = record.StateQueued, millis(age)-requeuedAt, policy, ""
		if d.Reason == core.QueuedForStart || d.Reason == core.QueuedForPrefill {
			s.Reason = d.Reason
		}
		s.Target, s.Forwarded, s.MatchBytes = d.HeldFor, false, 0
	}
	return s
}

// isQueued reports whether a request is queued: for the first time, or again after its latest attempt
// failed.
func isQueued(d *record.RequestRecord) bool {
	n := len(d.Attempts)
	return d.State == record.StateQueued || d.State == record.StateSent && n > 0 && d.Attempts[n-1].Failure != ""
}
