package telemetry

import (
	"time"

	"skyserve/internal/service"
)

// DecisionMemory is what a balancer can still tell of: the answer of
// GET /v1/decisions.
type DecisionMemory struct {
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"`
	// Remembered requests of at most Limit; a new one then replaces the oldest.
	Remembered int `json:"remembered"`
	Limit      int `json:"limit"`
	// Since is when the oldest of them arrived; nil when there is none.
	Since *time.Time `json:"since"`
}
