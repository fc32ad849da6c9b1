package record

import (
	"encoding/json"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// RequestRecord is the record of one request and its decisions, which explain shows.
type RequestRecord struct {
	Request  string         `json:"request"`
	At       time.Time      `json:"at"` // when it arrived
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"` // the balancer's
	Model    string         `json:"model"`
	// Split is the requested name, if service.yaml divides its sessions among several models. Model is
	// the selected one.
	Split  string       `json:"split,omitempty"`
	Tier   service.Tier `json:"tier"`
	Tenant string       `json:"tenant,omitempty"`
	// Session is a hash: of the prompt cache key, the session header, the user or
	// the client.
	Session string `json:"session,omitempty"`
	// PromptBytes is the length of the rendered prompt. PromptEstimate is its estimated number of
	// tokens, used until an engine reports the count.
	PromptBytes    int      `json:"prompt_bytes"`
	PromptEstimate int      `json:"prompt_tokens_estimate"`
	From           string   `json:"from,omitempty"` // the peer that forwarded it here
	Hop            core.Hop `json:"hop,omitempty"`  // how it was forwarded before it arrived here
	// Kind, Target, Reason and Decision are those of the last attempt.
	Kind     core.ActionKind `json:"kind"`
	Target   string          `json:"target,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Decision *core.Decision  `json:"decision"`
	// HeldFor is the replica that it waits for, as decided on arrival. It is empty if the request
	// waits for any replica or does not wait.
	HeldFor string `json:"held_for,omitempty"`
	// Attempts lists all decisions about it, oldest first.
	Attempts []Attempt `json:"tries"`
	// State is queued, sent, finished, rejected, cancelled, bounced (returned to the peer that forwarded it)
	// or failed.
	State string `json:"state"`
	// Status is the HTTP status of the response, 0 before it.
	Status int `json:"status"`
	// TTFTMillis and E2EMillis count from arrival; null until known.
	TTFTMillis *float64 `json:"ttft_ms"`
	E2EMillis  *float64 `json:"e2e_ms"`
	// The tokens are the engine's figures, null if it reported none.
	PromptTokens *int `json:"prompt_tokens"`
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens *int `json:"output_tokens"`
}

// MarshalJSON adds the former key of HeldFor.
func (d RequestRecord) MarshalJSON() ([]byte, error) {
	type plain RequestRecord
	return json.Marshal(struct {
		plain
		OldHeldFor string `json:"kept_for,omitempty"`
	}{plain(d), d.HeldFor})
}

// Attempt is one decision about a request and its result.
type Attempt struct {
	AtMillis float64         `json:"at_ms"` // since the request arrived
	Kind     core.ActionKind `json:"kind"`
	Target   string          `json:"target,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Decision *core.Decision  `json:"decision,omitempty"`
	// HeldFor is the replica that it waited for until then.
	HeldFor string `json:"held_for,omitempty"`
	// Cold means that it waited until then for the model's first replica to start.
	Cold bool `json:"cold,omitempty"`
	// SharedPrefill means that it waited from its arrival for the computation of another prompt
	// (core.QueuedForPrefill).
	SharedPrefill bool `json:"shared_prefill,omitempty"`
	// Engines are those of core.Action: the failed engines that caused the rejection of the
	// request.
	Engines []string `json:"engines,omitempty"`
	// Model is the fallback that the attempt is for; empty = the requested model.
	Model string `json:"model,omitempty"`
	// Failure is why this attempt failed; empty if it did not. EndedMillis is the time of the failure
	// since the request arrived; nil without a failure.
	Failure     string   `json:"failure,omitempty"`
	EndedMillis *float64 `json:"ended_ms,omitempty"`
}

// MarshalJSON adds the former key of HeldFor.
func (t Attempt) MarshalJSON() ([]byte, error) {
	type plain Attempt
	return json.Marshal(struct {
		plain
		OldHeldFor string `json:"kept_for,omitempty"`
	}{plain(t), t.HeldFor})
}

// Failed records the cause of the failure of the latest attempt, and its time since the request
// arrived.
func (d *RequestRecord) Failed(cause string, at time.Duration) {
	if n := len(d.Attempts); n > 0 {
		ended := float64(at) / float64(time.Millisecond)
		d.Attempts[n-1].Failure, d.Attempts[n-1].EndedMillis = cause, &ended
	}
}

// The values of RequestRecord.State.
const (
	StateQueued    = "queued"
	StateSent      = "sent"
	StateFinished  = "finished"
	StateRejected  = "rejected"
	StateCancelled = "cancelled"
	StateBounced   = "bounced"
	StateFailed    = "failed"
)

// Snapshot returns a copy that later changes do not affect. Decisions are shared, because they
// never change.
func (d *RequestRecord) Snapshot() RequestRecord {
	c := *d
	c.Attempts = append([]Attempt(nil), d.Attempts...)
	return c
}
