package main

import (
	"testing"
	"time"

	"skyserve/lbd/batch/job"
)

// The line tells the share and the counts of a batch, and the time left.
func TestBatchProgress(t *testing.T) {
	const left = 23*time.Hour + 59*time.Minute + 59*time.Second
	for _, tt := range []struct {
		status job.Status
		counts job.Counts
		want   string
	}{
		{job.Validating, job.Counts{}, "validating, expires in 23h59m59s"},
		{job.InProgress, job.Counts{Total: 20000, Completed: 7000}, "[#######.............]  35 %, 7000 of 20000 done, expires in 23h59m59s"},
		{job.InProgress, job.Counts{Total: 50000, Completed: 40000, Failed: 9}, "[################....]  80 %, 40009 of 50000 done, 9 failed, expires in 23h59m59s"},
		{job.Cancelling, job.Counts{Total: 4, Completed: 1, Failed: 1}, "[##########..........]  50 %, 2 of 4 done, 1 failed, cancelling, expires in 23h59m59s"},
	} {
		if got := batchProgress(&job.Batch{Status: tt.status, RequestCounts: tt.counts}, left+time.Millisecond); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestTransferText(t *testing.T) {
	for _, tt := range []struct {
		done, total int64
		want        string
	}{
		{350 << 20, 1 << 30, "[######..............]  34 %, 367.0 MB of 1.1 GB, uploading a.jsonl"},
		{350 << 20, -1, "367.0 MB, uploading a.jsonl"},
		{0, 0, "0 B, uploading a.jsonl"},
	} {
		if got := transferText("uploading a.jsonl", tt.done, tt.total); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
