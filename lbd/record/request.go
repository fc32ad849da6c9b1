package record

import (
	"encoding/json"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// Request is the record of one request and its decisions, which explain shows.
type Request struct {
	Request  string         `json:"request"`
	At       time.Time      `json:"at"` // when it arrived
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"` // the balancer's
	Model    string         `json:"model"`
	Tier     service.Tier   `json:"tier"`
	Tenant   string         `json:"tenant,omitempty"`
	// Session is a hash: of the prompt cache key, the session header, the user or
	// the client.
	Session string `json:"session,omitempty"`
	// PromptBytes is the rendered prompt's length, PromptEstimate what that is in
	// tokens as long as no engine has counted.
	PromptBytes    int      `json:"prompt_bytes"`
	PromptEstimate int      `json:"prompt_tokens_estimate"`
	From           string   `json:"from,omitempty"` // the peer that forwarded it here
	Hop            core.Hop `json:"hop,omitempty"`  // how far it had come
	// Kind, Target, Reason and Decision are the last try's.
	Kind     core.ActionKind `json:"kind"`
	Target   string          `json:"target,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Decision *core.Decision  `json:"decision"`
	// HeldFor is the replica that it waits for, as was decided when it came; empty
	// where it waits for any, or does not wait.
	HeldFor string `json:"held_for,omitempty"`
	// Attempts lists all decisions about it, oldest first.
	Attempts []Attempt `json:"tries"`
	// State is queued, sent, finished, rejected, cancelled, bounced or failed.
	State string `json:"state"`
	// Status is the HTTP status of the response, 0 before it.
	Status int `json:"status"`
	// TTFTMillis and E2EMillis count from arrival; null until known.
	TTFTMillis *float64 `json:"ttft_ms"`
	E2EMillis  *float64 `json:"e2e_ms"`
	// The tokens are the engine's figures, null where it gave none.
	PromptTokens *int `json:"prompt_tokens"`
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens *int `json:"output_tokens"`
}

// MarshalJSON adds the former key of HeldFor.
func (d Request) MarshalJSON() ([]byte, error) {
	type plain Request
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
	// HeldFor is the replica that it had waited for until then.
	HeldFor string `json:"held_for,omitempty"`
	// Engines are those of core.Action: who died, of a request that was rejected for it.
	Engines []string `json:"engines,omitempty"`
	// Failure says why it had to be tried again, empty when it had not; EndedMillis
	// when that was known, since the request arrived, null likewise.
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

// Failed records how the latest attempt ended, at a time since the request arrived.
func (d *Request) Failed(cause string, at time.Duration) {
	if n := len(d.Attempts); n > 0 {
		ended := float64(at) / float64(time.Millisecond)
		d.Attempts[n-1].Failure, d.Attempts[n-1].EndedMillis = cause, &ended
	}
}

// States of a Request.
const (
	StateQueued    = "queued"
	StateSent      = "sent"
	StateFinished  = "finished"
	StateRejected  = "rejected"
	StateCancelled = "cancelled"
	StateBounced   = "bounced"
	StateFailed    = "failed"
)

// Snapshot returns a copy that later changes do not affect. Decisions are shared, since they never
// change.
func (d *Request) Snapshot() Request {
	c := *d
	c.Attempts = append([]Attempt(nil), d.Attempts...)
	return c
}
