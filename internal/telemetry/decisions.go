package telemetry

import (
	"encoding/json"
	"time"

	"skyserve/internal/service"
)

// DecisionMemory describes the decisions that a balancer has in memory: the response of
// GET /v1/decisions.
type DecisionMemory struct {
	Balancer string         `json:"balancer"`
	Region   service.Region `json:"region"`
	// Recorded is the number of requests in memory. When it has reached Limit, a new request
	// replaces the oldest.
	Recorded int `json:"recorded"`
	Limit    int `json:"limit"`
	// Since is when the oldest of them arrived; nil when there is none.
	Since *time.Time `json:"since"`
}

// MarshalJSON adds the former key of Recorded.
func (m DecisionMemory) MarshalJSON() ([]byte, error) {
	type plain DecisionMemory
	return json.Marshal(struct {
		plain
		OldRecorded int `json:"remembered"`
	}{plain(m), m.Recorded})
}

// UnmarshalJSON also reads the former key of Recorded, which older balancers send.
func (m *DecisionMemory) UnmarshalJSON(data []byte) error {
	type plain DecisionMemory
	var read struct {
		plain
		OldRecorded int `json:"remembered"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*m = DecisionMemory(read.plain)
	m.Recorded = max(m.Recorded, read.OldRecorded)
	return nil
}
