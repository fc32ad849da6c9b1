//go:build compare && linux

package batch

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"skyserve/lbd/batch/job"
)

var ingestBytes = flag.Int64("batch.bytes", 1<<30, "size of the generated input")

// maxPeak is the maximum of the peak RSS in MB during the upload.
const maxPeak = 200

// observed are the machines whose memory is measured: the controller with a balancer and the store, the
// balancer that receives the upload, and another balancer.
var observed = []string{"lb-us-0", "lb-eu-0", "lb-asia-0"}

// TestCompareIngest uploads and validates an input at the limits of a file and a batch, and has its
// output written: the batch is cancelled, so the output has a line for each of its requests.
func TestCompareIngest(t *testing.T) {
	s := startLive(t, quickstart(t))
	requests := job.DefaultLimits().Requests
	const upload = "upload"
	t.Logf("%-26s %7s %7s %11s   peak RSS in MB of %s", "", "s", "MB/s", "requests/s", strings.Join(observed, ", "))
	phase := func(name string, bytes int64, f func()) {
		for _, machine := range observed {
			s.resetPeakRSS(machine)
		}
		started := time.Now()
		f()
		took := time.Since(started).Seconds()
		peaks := ""
		for _, machine := range observed {
			peak := s.peakRSS(machine)
			peaks += fmt.Sprintf(" %4.0f", peak)
			if name == upload && peak > maxPeak {
				t.Errorf("%s: the peak RSS of %s is %.0f MB, must be at most %d MB", name, machine, peak, maxPeak)
			}
		}
		t.Logf("%-26s %7.1f %7.1f %11.0f  %s", name, took, float64(bytes)/1e6/took, float64(requests)/took, peaks)
	}
	var file job.File
	phase(upload, *ingestBytes, func() {
		file = s.upload(1, func(w io.Writer) error { return writeRequests(w, requests, *ingestBytes) })
	})
	var b job.Batch
	phase("validation", file.Bytes, func() {
		b = s.create(1, file.ID, "/v1/completions", "24h")
		b = s.awaitStatus(b.ID, 10*time.Minute, job.InProgress, job.Failed)
	})
	if b.Status != job.InProgress || b.RequestCounts.Total != requests {
		t.Fatalf("the batch: %+v", b)
	}
	var lines []byte
	phase("cancelling, error file", file.Bytes, func() {
		if err := s.call("POST", 1, PathBatches+"/"+b.ID+"/cancel", "", nil, &b); err != nil {
			t.Fatal(err)
		}
		b = s.awaitStatus(b.ID, 10*time.Minute, job.Cancelled)
	})
	if b.ErrorFileID == nil {
		t.Fatalf("the batch has no error file: %+v", b)
	}
	var result job.File
	if err := s.call("GET", 1, PathFiles+"/"+*b.ErrorFileID, "", nil, &result); err != nil {
		t.Fatal(err)
	}
	phase("download of the error file", result.Bytes, func() {
		if err := s.call("GET", 1, PathFiles+"/"+*b.ErrorFileID+"/content", "", nil, &lines); err != nil {
			t.Fatal(err)
		}
	})
	if n := strings.Count(string(lines), "\n"); n+b.RequestCounts.Completed != requests {
		t.Errorf("%d lines and %d results, want %d", n, b.RequestCounts.Completed, requests)
	}
}

// writeRequests writes the lines of an input that has a number of bytes in all.
func writeRequests(w io.Writer, requests int, size int64) error {
	out := bufio.NewWriterSize(w, 1<<20)
	words := strings.Repeat("lorem ipsum dolor sit amet ", int(size)/requests/27+1)
	for i := range requests {
		line := fmt.Sprintf(`{"custom_id":"r%d","method":"POST","url":"/v1/completions","body":{"model":"chat-small","max_tokens":1,"prompt":"%d `, i, i)
		const end = "\"}}\n"
		pad := max(0, int(size)/requests-len(line)-len(end))
		if _, err := out.WriteString(line + words[:pad] + end); err != nil {
			return err
		}
	}
	return out.Flush()
}
