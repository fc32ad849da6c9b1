package telemetry

import (
	"time"

	"skyserve/internal/service"
)

// DecisionMemory describes which decisions a balancer still remembers: the response of
// GET /v1/decisions.
type DecisionMemory struct {
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"`
	// Count is the number of requests remembered, at most Limit; a new one then
	// replaces the oldest.
	Count int `json:"remembered"`
	Limit int `json:"limit"`
	// Since is when the oldest of them arrived; nil when there is none.
	Since *time.Time `json:"since"`
}
