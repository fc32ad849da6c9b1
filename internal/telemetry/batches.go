package telemetry

import (
	"fmt"
	"time"
)

// BatchState is the progress of a batch that has not ended. The counts are of requests.
type BatchState struct {
	ID        string    `json:"id"`
	Tenant    string    `json:"tenant"` // empty without tenants
	Status    string    `json:"status"` // as in OpenAI's API
	Model     string    `json:"model"`  // empty if there are several, or before the input is validated
	Total     int       `json:"total"`
	Completed int       `json:"completed"`
	Failed    int       `json:"failed"`
	CreatedAt time.Time `json:"created_at"`
	Deadline  time.Time `json:"deadline"`
	// RequestsPerSecond is the rate of the last minute, nil before it is known. FinishAt is when the batch is
	// expected to end, CostUSD its expected cost; nil = unknown.
	RequestsPerSecond *float64   `json:"requests_per_second"`
	FinishAt          *time.Time `json:"finish_at"`
	CostUSD           *float64   `json:"cost_usd"`
	// WaitsFor is the quota or budget that the batch waits for, such as "quota of key bob (1 request per day)", and
	// WaitsUntil the end of its period; empty and nil if it does not wait.
	WaitsFor   string     `json:"waits_for"`
	WaitsUntil *time.Time `json:"waits_until"`
	// Backlog is the prompt of the requests without a result, by model.
	Backlog []BatchBacklog `json:"backlog"`
}

// BatchBacklog is the prompt of requests for one model.
type BatchBacklog struct {
	Model       string  `json:"model"` // as requested: a name or an alias
	InputTokens float64 `json:"input_tokens"`
}

// Late reports whether the batch is expected to end after its deadline.
func (b *BatchState) Late() bool { return b.FinishAt != nil && b.FinishAt.After(b.Deadline) }

// Waits returns what the batch waits for, such as "quota of key bob (1 request per day) until 2026-12-01 00:00";
// empty if it does not wait. format formats the time.
func (b *BatchState) Waits(format func(time.Time) string) string {
	if b.WaitsUntil == nil {
		return ""
	}
	return b.WaitsFor + " until " + format(*b.WaitsUntil)
}

// Remaining returns the number of requests without a result.
func (b *BatchState) Remaining() int { return b.Total - b.Completed - b.Failed }

// maxBatchLines is the number of batches that BatchLines lists one by one.
const maxBatchLines = 5

// BatchLines returns the progress of the batches that have not ended, one line each after a summary, such as
// "batches: 2 open, 400 of 3000 requests done, next deadline 2026-11-29 18:30:00"; none without batches.
func (s *Snapshot) BatchLines(zone *time.Location) []string {
	if len(s.Batches) == 0 {
		return nil
	}
	total, done := 0, 0
	for i := range s.Batches {
		total, done = total+s.Batches[i].Total, done+s.Batches[i].Total-s.Batches[i].Remaining()
	}
	lines := []string{fmt.Sprintf("batches: %d open, %d of %d requests done, next deadline %s", len(s.Batches), done, total, s.Batches[0].Deadline.In(zone).Format(time.DateTime))}
	for i := range s.Batches[:min(len(s.Batches), maxBatchLines)] {
		b := &s.Batches[i]
		line := fmt.Sprintf("  %s  %s, %d of %d done", b.ID, b.Status, b.Total-b.Remaining(), b.Total)
		if b.Failed > 0 {
			line += fmt.Sprintf(", %d failed", b.Failed)
		}
		if waits := b.Waits(func(at time.Time) string { return at.In(zone).Format(time.DateTime) }); waits != "" {
			line += ", waits for the " + waits
		}
		line += ", expires " + b.Deadline.In(zone).Format(time.DateTime)
		if b.FinishAt != nil {
			line += ", expected to end " + b.FinishAt.In(zone).Format(time.DateTime)
		}
		if b.Late() {
			line += " (late)"
		}
		lines = append(lines, line)
	}
	if more := len(s.Batches) - maxBatchLines; more > 0 {
		lines = append(lines, fmt.Sprintf("  %d more: skyserve batch list", more))
	}
	return lines
}
