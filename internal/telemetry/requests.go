package telemetry

import (
	"time"

	"skyserve/internal/service"
)

// MaxRequests is how many requests GET /v1/requests lists at most: what a person looks
// through, in half a megabyte.
const MaxRequests = 1000

// RequestSummary is a request and what was decided about it last, in short: a row of
// GET /v1/requests. GET /v1/decisions/{request} tells the whole.
type RequestSummary struct {
	Request  string         `json:"request"`
	At       time.Time      `json:"at"` // when it arrived
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"` // the balancer's
	Model    string         `json:"model"`
	Tier     service.Tier   `json:"tier"`
	Tenant   string         `json:"tenant"`
	From     string         `json:"from"` // the balancer that forwarded it here; empty from a client
	// State is queued, sent, finished, rejected, cancelled, bounced or failed.
	State string `json:"state"`
	// Status is what the client was answered, 0 while it was not.
	Status int `json:"status"`
	// Target is the replica or balancer that it was sent to last, or that it is kept
	// for while it waits; empty for none. Forwarded says that Target is a balancer.
	Target    string `json:"target"`
	Forwarded bool   `json:"forwarded"`
	// Policy decided, for this Reason, in its own word.
	Policy string `json:"policy"`
	Reason string `json:"reason"`
	// MatchBytes of PromptBytes were thought to be cached at Target.
	MatchBytes  int `json:"match_bytes"`
	PromptBytes int `json:"prompt_bytes"`
	// Tries is how often it was sent, or refused.
	Tries int `json:"tries"`
	// QueuedMillis is the time in the queue before the last try, or until now while it waits.
	QueuedMillis float64 `json:"queued_ms"`
	// TTFTMillis and E2EMillis count from arrival; nil until known.
	TTFTMillis *float64 `json:"ttft_ms"`
	E2EMillis  *float64 `json:"e2e_ms"`
	// The tokens are the engine's figures, nil where it gave none.
	PromptTokens *int `json:"prompt_tokens"`
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens *int `json:"output_tokens"`
}
