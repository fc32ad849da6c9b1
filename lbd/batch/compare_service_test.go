//go:build compare && linux

package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testkit"
	"skyserve/lbd/batch/job"
)

// liveService is a service with calls of the API of batches.
type liveService struct {
	*testkit.LiveService
	t *testing.T
}

const (
	liveName = "batches"
	rootPath = "../.."
)

// startLive starts a service on free ports. The document is one for testkit.NewLiveService.
func startLive(t *testing.T, document string) *liveService {
	t.Helper()
	s := &liveService{testkit.NewLiveService(t, rootPath, liveName, document), t}
	s.Run("up", s.Document)
	return s
}

func quickstart(t *testing.T) string { return testkit.Quickstart(t, rootPath, liveName) }

// resetPeakRSS starts a new measurement of the peak of a machine's memory.
func (s *liveService) resetPeakRSS(machine string) {
	s.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.PID(machine)), []byte("5"), 0); err != nil {
		s.t.Fatal(err)
	}
}

// peakRSS returns the peak of the resident memory of a machine's process in MB.
func (s *liveService) peakRSS(machine string) float64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID(machine)))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kilobytes, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return float64(kilobytes) * 1024 / 1e6
}

// call makes a request and decodes its response. It returns an error for a status other than 200.
func (s *liveService) call(method string, balancer int, path, contentType string, body io.Reader, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.URL(balancer)+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", contentType)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s: %s: %.300s: %w", path, res.Status, text, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.300s", path, res.Status, text)
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = text
		return nil
	}
	return json.Unmarshal(text, out)
}

// upload uploads a generated file.
func (s *liveService) upload(balancer int, write func(io.Writer) error) (f job.File) {
	s.t.Helper()
	in, out := io.Pipe()
	form := multipart.NewWriter(out)
	go func() {
		part, err := form.CreateFormFile("file", "requests.jsonl")
		if err == nil {
			err = write(part)
		}
		if err == nil {
			err = form.WriteField("purpose", job.PurposeBatch)
		}
		if err == nil {
			err = form.Close()
		}
		out.CloseWithError(err)
	}()
	if err := s.call("POST", balancer, PathFiles, form.FormDataContentType(), in, &f); err != nil {
		s.t.Fatal(err)
	}
	return f
}

// create creates a batch.
func (s *liveService) create(balancer int, file, endpoint, window string) (b job.Batch) {
	s.t.Helper()
	text, _ := json.Marshal(job.Params{InputFileID: file, Endpoint: endpoint, CompletionWindow: window})
	if err := s.call("POST", balancer, PathBatches, "application/json", bytes.NewReader(text), &b); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// awaitStatus reads a batch at some balancer until it has one of the states.
func (s *liveService) awaitStatus(id string, limit time.Duration, states ...job.Status) (b job.Batch) {
	s.t.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for balancer := range 3 {
			if err = s.call("GET", balancer, PathBatches+"/"+id, "", nil, &b); err == nil {
				break
			}
		}
		if err == nil && slices.Contains(states, b.Status) {
			return b
		}
	}
	s.t.Fatalf("the batch has no state of %v after %s: %+v, %v", states, limit, b, err)
	return b
}
