package telemetry

import (
	"time"

	"skyserve/internal/service"
)

// DecisionMemory describes the decisions that a balancer has in memory: the response of
// GET /v1/decisions.
type DecisionMemory struct {
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"`
	// Count is the number of requests in memory. When it has reached Limit, a new request
	// replaces the oldest.
	Count int `json:"remembered"`
	Limit int `json:"limit"`
	// Since is when the oldest of them arrived; nil when there is none.
	Since *time.Time `json:"since"`
}
