package batch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/store"
	"skyserve/internal/testkit"
	"skyserve/lbd/batch/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testkit.NATSLeaks()...) }

func serveStore(t testing.TB) *store.Server {
	t.Helper()
	srv, err := store.Serve(context.Background(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	return srv
}

// engine is a Sender that answers with the request's prompt.
type engine struct {
	mu     sync.Mutex
	sent   map[string]int // by prompt
	caller Caller         // of the last request
	answer func(ctx context.Context, prompt string, attempt int) Response
	models map[string]int // replicas by model
}

func newEngine(answer func(ctx context.Context, prompt string, attempt int) Response) *engine {
	return &engine{sent: map[string]int{}, answer: answer, models: map[string]int{"llama": 1}}
}

func (e *engine) Accepts(model string) bool { _, ok := e.models[model]; return ok }

func (e *engine) Replicas(model string) int { return e.models[model] }

func (e *engine) Send(ctx context.Context, r Request) Response {
	var body struct{ Prompt string }
	_ = json.Unmarshal(r.Body, &body)
	e.mu.Lock()
	e.sent[body.Prompt]++
	e.caller = r.Caller
	attempt := e.sent[body.Prompt]
	e.mu.Unlock()
	if e.answer == nil {
		return echo(body.Prompt)
	}
	return e.answer(ctx, body.Prompt, attempt)
}

func (e *engine) total() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sent := range e.sent {
		n += sent
	}
	return n
}

func echo(prompt string) Response {
	return Response{Status: 200, Body: fmt.Appendf(nil, "{\n\"text\":%q}", prompt)}
}

// node is a balancer's service with its worker.
type node struct {
	*Service
	t     testing.TB
	store *store.Store
	stop  context.CancelFunc
	ended chan struct{}
}

// startNode connects a service to a store; it executes batches if sender is not nil.
func startNode(t testing.TB, srv *store.Server, sender Sender, o Options) *node {
	t.Helper()
	st, err := store.Connect(t.Context(), srv.URL(), "")
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.Sender, o.Balancer = st, sender, "lb"
	o.heartbeat = cmp.Or(o.heartbeat, 100*time.Millisecond)
	o.Logger = slog.New(slog.DiscardHandler)
	n := &node{Service: New(o), t: t, store: st, ended: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() {
		defer close(n.ended)
		if sender != nil {
			n.RunWorker(ctx)
		}
	}()
	t.Cleanup(n.end)
	return n
}

// end stops the service in order.
func (n *node) end() {
	n.stop()
	<-n.ended
	n.store.Close()
}

// kill stops the service without a last word to the store.
func (n *node) kill() {
	n.store.Close()
	n.stop()
}

// call makes a request and returns its status and response.
func (n *node) call(c Caller, method, path string, body io.Reader, contentType string) (int, []byte) {
	n.t.Helper()
	return n.callUntil(n.t.Context(), c, method, path, body, contentType)
}

// callUntil is call of a client that disconnects when ctx ends.
func (n *node) callUntil(ctx context.Context, c Caller, method, path string, body io.Reader, contentType string) (int, []byte) {
	n.t.Helper()
	req := httptest.NewRequestWithContext(ctx, method, path, body)
	req.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	n.Serve(w, req, c)
	return w.Code, w.Body.Bytes()
}

// get makes a request without a body, and decodes the response into out.
func (n *node) get(c Caller, method, path string, out any) int {
	n.t.Helper()
	status, body := n.call(c, method, path, nil, "")
	if out != nil && status == http.StatusOK {
		if err := json.Unmarshal(body, out); err != nil {
			n.t.Fatalf("%s: %v", body, err)
		}
	}
	return status
}

// upload uploads a file; its other fields are pairs.
func (n *node) upload(c Caller, content string, fields ...string) (int, []byte) {
	n.t.Helper()
	return n.uploadUntil(n.t.Context(), c, content, fields...)
}

// uploadUntil is upload by a client that disconnects when ctx ends.
func (n *node) uploadUntil(ctx context.Context, c Caller, content string, fields ...string) (int, []byte) {
	n.t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("file", "in.jsonl")
	if err != nil {
		n.t.Fatal(err)
	}
	_, _ = io.WriteString(part, content)
	for i := 0; i < len(fields); i += 2 {
		_ = w.WriteField(fields[i], fields[i+1])
	}
	w.Close()
	return n.callUntil(ctx, c, "POST", PathFiles, &form, w.FormDataContentType())
}

// mustUpload uploads the input of a batch and returns its id.
func (n *node) mustUpload(c Caller, content string) string {
	n.t.Helper()
	status, body := n.upload(c, content, "purpose", "batch")
	var f job.File
	if status != http.StatusOK || json.Unmarshal(body, &f) != nil {
		n.t.Fatalf("uploading: %d %s", status, body)
	}
	return f.ID
}

// submit creates a batch of prompts.
func (n *node) submit(c Caller, window string, lines ...string) job.Batch {
	n.t.Helper()
	return n.submitFile(c, window, n.mustUpload(c, strings.Join(lines, "\n")))
}

func (n *node) submitFile(c Caller, window, file string) (b job.Batch) {
	n.t.Helper()
	params := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":%q,"metadata":{"job":"night"}}`, file, window)
	status, body := n.call(c, "POST", PathBatches, strings.NewReader(params), "application/json")
	if status != http.StatusOK || json.Unmarshal(body, &b) != nil {
		n.t.Fatalf("creating: %d %s", status, body)
	}
	return b
}

// await waits until a batch has a status.
func (n *node) await(c Caller, id string, want job.Status) (b job.Batch) {
	n.t.Helper()
	testkit.Eventually(n.t, fmt.Sprintf("the batch is %s", want), func() bool {
		if status := n.get(c, "GET", PathBatches+"/"+id, &b); status != http.StatusOK {
			n.t.Fatalf("the batch: %d", status)
		}
		if b.Status.Final() && b.Status != want {
			n.t.Fatalf("the batch is %s: %+v", b.Status, b.Errors)
		}
		return b.Status == want
	})
	return b
}

// outputs returns the lines of a file.
func (n *node) outputs(c Caller, file *string) (lines []job.Output) {
	n.t.Helper()
	if file == nil {
		return nil
	}
	status, body := n.call(c, "GET", PathFiles+"/"+*file+"/content", nil, "")
	if status != http.StatusOK {
		n.t.Fatalf("%s: %d %s", *file, status, body)
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(body), "\n"), "\n") {
		var o job.Output
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			n.t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, o)
	}
	return lines
}

// line returns a line of an input file.
func line(id, prompt string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":"/v1/completions","body":{"model":"llama","prompt":%q}}`, id, prompt)
}

// lines returns n lines with the prompts p0, p1...
func lines(n int) (all []string) {
	for i := range n {
		all = append(all, line(fmt.Sprint("id-", i), fmt.Sprint("p", i)))
	}
	return all
}
