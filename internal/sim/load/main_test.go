package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/sim/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chunk is a piece of a response body with its delay.
type chunk struct {
	after time.Duration
	text  string
}

// timedBody returns its chunks at their times, until its request is cancelled.
type timedBody struct {
	ctx    context.Context
	chunks []chunk
	rest   string
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.rest == "" {
		if len(b.chunks) == 0 {
			return 0, io.EOF
		}
		timer := time.NewTimer(b.chunks[0].after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
		b.rest, b.chunks = b.chunks[0].text, b.chunks[1:]
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *timedBody) Close() error { return nil }

// seen is a request as received by the service.
type seen struct {
	at     time.Duration // since the service was created
	host   string
	header http.Header
	body   struct {
		Model         string             `json:"model"`
		Messages      []workload.Message `json:"messages"`
		MaxTokens     int                `json:"max_tokens"`
		IgnoreEOS     bool               `json:"ignore_eos"`
		Stream        bool               `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		User string `json:"user"`
	}
}

// fake is a service without network: a transport whose n-th response comes from response. It works inside
// a synctest bubble.
type fake struct {
	response func(n int, s seen) reply
	start    time.Time

	mu   sync.Mutex
	seen []seen
}

// reply is a response.
type reply struct {
	err    error
	hang   bool // no response until the request is cancelled
	status int  // 0 = 200
	header map[string]string
	chunks []chunk
}

func newFake(response func(n int, s seen) reply) *fake {
	return &fake{response: response, start: time.Now()}
}

func (s *fake) RoundTrip(req *http.Request) (*http.Response, error) {
	got := seen{at: time.Since(s.start), host: req.URL.Host, header: req.Header}
	if err := json.NewDecoder(req.Body).Decode(&got.body); err != nil {
		return nil, err
	}
	s.mu.Lock()
	n := len(s.seen)
	s.seen = append(s.seen, got)
	s.mu.Unlock()
	r := s.response(n, got)
	if r.hang {
		<-req.Context().Done()
		r.err = req.Context().Err()
	}
	if r.err != nil {
		return nil, r.err
	}
	header := http.Header{}
	for k, v := range r.header {
		header.Set(k, v)
	}
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return &http.Response{
		StatusCode: r.status, Header: header,
		Body: &timedBody{ctx: req.Context(), chunks: r.chunks},
	}, nil
}

const doneEvent = "data: [DONE]\n\n"

func contentEvent(text string) string {
	quotedText, _ := json.Marshal(text)
	return fmt.Sprintf(`data: {"id":"1","choices":[{"index":0,"delta":{"content":%s}}],"usage":null}`+"\n\n", quotedText)
}

func usageEvent(prompt, output, cached int) string {
	return fmt.Sprintf(`data: {"id":"1","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
		prompt, output, prompt+output, cached)
}

// streamed returns a response of n tokens: the first after ttft, the others every gap.
func streamed(n int, ttft, gap time.Duration) []chunk {
	chunks := []chunk{{0, `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"}}
	for i := range n {
		after := gap
		if i == 0 {
			after = ttft
		}
		chunks = append(chunks, chunk{after, contentEvent(" tok")})
	}
	return append(chunks, chunk{0, usageEvent(100, n, 40) + doneEvent})
}

// looped is a closed-loop client that sends one request after the other.
type looped struct {
	n         int
	responses []string
	failed    int
}

func (l *looped) request() []workload.Request {
	l.n++
	return []workload.Request{{
		Seq: l.n - 1, Session: fmt.Sprint("session-", l.n), User: "ann", OutputTokens: 11,
		Messages: []workload.Message{{Role: "user", Content: " hello"}}, InputTokens: 1,
	}}
}

func (l *looped) Next() []workload.Request { return l.request() }

func (l *looped) Done(_ workload.Request, response string) []workload.Request {
	l.responses = append(l.responses, response)
	return l.request()
}

func (l *looped) Failed(workload.Request) []workload.Request {
	l.failed++
	return l.request()
}

// oneRegion returns a configuration with the region us at host us.
func oneRegion(t http.RoundTripper) Config {
	return Config{Targets: []Target{{"us", "http://us"}}, Model: "m", Transport: t}
}

func wantClose(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(got >= want-tolerance && got <= want+tolerance) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// checkLaw checks that every request has exactly one outcome.
func checkLaw(t *testing.T, r *Report) {
	t.Helper()
	for region, f := range r.ByRegion {
		statuses, failures := 0, 0
		for _, n := range f.ByStatus {
			statuses += n
		}
		for _, n := range f.Failures {
			failures += n
		}
		if f.Requests != f.OK+f.Rejected+f.Failed+f.Cancelled || statuses != f.Requests || failures != f.Failed {
			t.Errorf("region %s: %d requests, but %d ok, %d rejected, %d failed (%v), %d cancelled, by status %v",
				region, f.Requests, f.OK, f.Rejected, f.Failed, f.Failures, f.Cancelled, f.ByStatus)
		}
	}
}
