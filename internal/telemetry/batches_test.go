package telemetry

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Operators see how far each batch is and until when it has time, the earliest deadline first.
func TestBatchLines(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	var s Snapshot
	if got := s.BatchLines(time.UTC); got != nil {
		t.Errorf("without batches: %q", got)
	}
	s.Batches = []BatchState{
		{ID: "batch_a", Status: "in_progress", Total: 100, Completed: 40, Failed: 2, Deadline: at},
		{ID: "batch_b", Status: "validating", Deadline: at.Add(time.Hour)},
		{ID: "batch_c", Status: "in_progress", Deadline: at.Add(time.Hour), WaitsFor: "quota of key bob (1 request per day)", WaitsUntil: &at},
	}
	want := []string{
		"batches: 3 open, 42 of 100 requests done, next deadline 2026-01-02 15:04:05",
		"  batch_a  in_progress, 42 of 100 done, 2 failed, expires 2026-01-02 15:04:05",
		"  batch_b  validating, 0 of 0 done, expires 2026-01-02 16:04:05",
		"  batch_c  in_progress, 0 of 0 done, waits for the quota of key bob (1 request per day) until 2026-01-02 15:04:05, expires 2026-01-02 16:04:05",
	}
	if got := s.BatchLines(time.UTC); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	for i := range 6 {
		s.Batches = append(s.Batches, BatchState{ID: fmt.Sprint("batch_", i), Deadline: at.Add(2 * time.Hour)})
	}
	if got := s.BatchLines(time.UTC); len(got) != 7 || got[6] != "  4 more: skyserve batch list" {
		t.Errorf("%q", got)
	}
}
