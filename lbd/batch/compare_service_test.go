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
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/lbd/batch/job"
)

// liveService is a local service of real processes, of the binary that `make build` writes.
type liveService struct {
	t        *testing.T
	program  string
	home     string
	document string // path of its service.yaml
	port     int    // of the first balancer
}

const liveName = "batches"

// startLive starts a service like the quickstart on free ports. The document has the verbs %d for the port.
func startLive(t *testing.T, document string) *liveService {
	t.Helper()
	program, err := filepath.Abs("../../bin/skyserve")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "skyserve-batch-") // t.TempDir is removed before the service is down
	if err != nil {
		t.Fatal(err)
	}
	s := &liveService{t: t, program: program, home: filepath.Join(dir, "home"), document: filepath.Join(dir, "service.yaml")}
	t.Cleanup(func() {
		if out, err := s.command("down", liveName).CombinedOutput(); err != nil {
			t.Errorf("stopping the service: %v: %s", err, out)
		}
		_ = os.RemoveAll(dir)
	})
	for s.port = 15001; ; s.port += 1000 {
		if err := os.WriteFile(s.document, fmt.Appendf(nil, document, s.port), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := s.command("up", s.document).CombinedOutput()
		if err == nil {
			return s
		}
		if s.port > 20_000 || !bytes.Contains(out, []byte("is in use")) {
			t.Fatalf("starting the service: %v: %s", err, out)
		}
	}
}

// quickstart returns the quickstart's service.yaml as a document for startLive.
func quickstart(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/quickstart/service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for old, changed := range map[string]string{"name: quickstart": "name: " + liveName, "\nlocal:\n": "\nlocal:\n  port: %d\n"} {
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("the quickstart has no %q", old)
		}
		text = bytes.Replace(text, []byte(old), []byte(changed), 1)
	}
	return string(text)
}

func (s *liveService) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, args...)
	cmd.Env = append(os.Environ(), "SKYSERVE_HOME="+s.home)
	return cmd
}

// run runs a command of the program and returns its standard output.
func (s *liveService) run(args ...string) []byte {
	s.t.Helper()
	cmd := s.command(args...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%v: %v: %s", args, err, errors.Bytes())
	}
	return out
}

// machines returns the names of the service's machines, sorted.
func (s *liveService) machines() (names []string) {
	entries, err := os.ReadDir(filepath.Join(s.home, "services", liveName, "machines"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// pid returns the process of a machine; 0 if it does not run.
func (s *liveService) pid(machine string) int {
	file := filepath.Join(s.home, "services", liveName, "machines", machine) + "/"
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && bytes.Contains(line, []byte(file)) {
			return pid
		}
	}
	return 0
}

// kill kills the process of a machine, and reports whether there was one.
func (s *liveService) kill(machine string) bool {
	pid := s.pid(machine)
	return pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
}

// resetPeakRSS starts a new measurement of the peak of a machine's memory.
func (s *liveService) resetPeakRSS(machine string) {
	s.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.pid(machine)), []byte("5"), 0); err != nil {
		s.t.Fatal(err)
	}
}

// peakRSS returns the peak of the resident memory of a machine's process in MB.
func (s *liveService) peakRSS(machine string) float64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid(machine)))
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

// url returns the URL of the balancer with an index.
func (s *liveService) url(balancer int) string {
	return fmt.Sprintf("http://127.0.0.1:%d", s.port+balancer)
}

// call makes a request and decodes its response. It returns an error for a status other than 200.
func (s *liveService) call(method string, balancer int, path, contentType string, body io.Reader, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url(balancer)+path, body)
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
	if err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.300s, %w", path, res.Status, text, err)
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
