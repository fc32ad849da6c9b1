package telemetry

import (
	"time"

	"skyserve/internal/service"
)

// MaxRequests is the maximum number of requests that GET /v1/requests lists: about half a
// megabyte.
const MaxRequests = 1000

// RequestSummary is a request and the last decision about it: a row of GET /v1/requests.
// GET /v1/decisions/{request} returns all decisions.
type RequestSummary struct {
	Request  string         `json:"request"`
	At       time.Time      `json:"at"` // when it arrived
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"` // of the balancer
	Model    string         `json:"model"`
	Tier     service.Tier   `json:"tier"`
	Tenant   string         `json:"tenant"`
	From     string         `json:"from"` // the balancer that forwarded it here; empty from a client
	// State is queued, sent, finished, rejected, cancelled, bounced or failed.
	State string `json:"state"`
	// Status is the HTTP status of the response to the client, 0 before the response.
	Status int `json:"status"`
	// Target is the replica or balancer that it was last sent to, or that it is queued
	// for; empty for none. Forwarded is true if Target is a balancer.
	Target    string `json:"target"`
	Forwarded bool   `json:"forwarded"`
	// Policy is the policy that decided; Reason is its reason.
	Policy string `json:"policy"`
	Reason string `json:"reason"`
	// MatchBytes is the part of PromptBytes that was expected to be cached at Target.
	MatchBytes  int `json:"match_bytes"`
	PromptBytes int `json:"prompt_bytes"`
	// Tries is the number of attempts, including rejected ones.
	Tries int `json:"tries"`
	// QueuedMillis is the queueing time before the last attempt, or until now while queued.
	QueuedMillis float64 `json:"queued_ms"`
	// TTFTMillis and E2EMillis count from arrival; nil until known.
	TTFTMillis *float64 `json:"ttft_ms"`
	E2EMillis  *float64 `json:"e2e_ms"`
	// The token counts are reported by the engine, nil if it reported none.
	PromptTokens *int `json:"prompt_tokens"`
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens *int `json:"output_tokens"`
}
