package replay

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"skyserve/provision/record"
)

// Transport answers requests with recorded responses. A request is answered by the first call with the same
// request that was not used yet, or by the last one again: a caller may poll more often than when the calls were
// recorded. It is safe for concurrent use.
type Transport struct {
	redactor *record.Redactor
	mu       sync.Mutex
	calls    []record.Call
	lines    []string // the comparable request of each call
	used     []bool
	misses   []error
}

// NewTransport returns a transport for the calls of a recording.
func NewTransport(calls []record.Call) *Transport {
	t := &Transport{redactor: record.NewRedactor(nil), used: make([]bool, len(calls))}
	for _, c := range calls {
		t.calls = append(t.calls, c)
		t.lines = append(t.lines, comparableText(c.Request))
	}
	return t
}

// RoundTrip answers a request. A request that was not recorded is an error with the differences from the most
// similar recorded one.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		defer r.Body.Close()
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	request := t.redactor.Request(r, body)
	line := comparableText(request)
	t.mu.Lock()
	defer t.mu.Unlock()
	found := -1
	for i := range t.calls {
		if t.lines[i] != line {
			continue
		}
		if found = i; !t.used[i] {
			break
		}
	}
	if found < 0 {
		err := t.mismatch(line)
		t.misses = append(t.misses, err)
		return nil, err
	}
	t.used[found] = true
	c := t.calls[found]
	if c.Response == nil {
		return nil, fmt.Errorf("recorded error: %s", c.Error)
	}
	return responseOf(c, r), nil
}

// responseOf returns the recorded response of a call.
func responseOf(c record.Call, r *http.Request) *http.Response {
	content := c.Response.Content()
	h := http.Header{}
	for name, value := range c.Response.Headers {
		if name != "Content-Length" && name != "Content-Encoding" && name != "Transfer-Encoding" { // of the body as transmitted
			h.Set(name, value)
		}
	}
	return &http.Response{
		StatusCode: c.Response.Status, Status: fmt.Sprintf("%d %s", c.Response.Status, http.StatusText(c.Response.Status)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(strings.NewReader(content)), ContentLength: int64(len(content)), Request: r,
	}
}

// mismatch returns an error with the difference from the most similar recorded request.
func (t *Transport) mismatch(line string) error {
	best, bestDiff := -1, ""
	for i, recorded := range t.lines {
		diff := diffLines(recorded, line)
		if best < 0 || strings.Count(diff, "\n") < strings.Count(bestDiff, "\n") {
			best, bestDiff = i, diff
		}
	}
	if best < 0 {
		return fmt.Errorf("replaying: the recording has no calls, got the request\n%s", line)
	}
	return fmt.Errorf("replaying: no recorded call has this request; the most similar is call %d (- recorded, + sent):\n%s", t.calls[best].Number, bestDiff)
}

// Misses returns the errors of requests that were not recorded.
func (t *Transport) Misses() []error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.misses)
}

// Unused returns the numbers of the recorded calls that answered no request.
func (t *Transport) Unused() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	var numbers []int
	for i, c := range t.calls {
		if !t.used[i] {
			numbers = append(numbers, c.Number)
		}
	}
	return numbers
}

// numbered matches the parts of a request that differ between two runs: the numbers of placeholders and
// pseudonyms, times, and the ids by which a cloud recognises a repeated request.
var (
	numbered  = regexp.MustCompile(`REDACTED-\d+`)
	accountOf = regexp.MustCompile(`\b1000000\d{5}\b`)
	projectOf = regexp.MustCompile(`\bproject-\d{5}\b`)
	moment    = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})`)
	uuid      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// comparableText returns the parts of a request that must be equal, one a line: method, URL without host, the
// operation of AWS's JSON protocols, and the body.
func comparableText(r record.Request) string {
	lines := []string{r.Method}
	if u, err := url.Parse(r.URL); err == nil {
		lines = append(lines, "path: "+u.Path)
		for _, name := range sortedKeys(u.Query()) {
			lines = append(lines, "query "+name+": "+strings.Join(u.Query()[name], ", "))
		}
	}
	if target := r.Headers["X-Amz-Target"]; target != "" {
		lines = append(lines, "operation: "+target)
	}
	switch {
	case r.Form != nil:
		for _, name := range sortedKeys(r.Form) {
			lines = append(lines, name+": "+strings.Join(r.Form[name], ", "))
		}
	case r.JSON != nil, r.XML != "":
		fields := fieldsOf(r.Body)
		for _, path := range sortedKeys(fields) {
			lines = append(lines, path+": "+fields[path])
		}
	case r.Text != "":
		lines = append(lines, r.Text)
	}
	text := strings.Join(lines, "\n")
	text = numbered.ReplaceAllString(text, "REDACTED")
	text = accountOf.ReplaceAllString(text, "ACCOUNT")
	text = projectOf.ReplaceAllString(text, "PROJECT")
	text = moment.ReplaceAllString(text, "TIME")
	return uuid.ReplaceAllString(text, "UUID")
}

// diffLines returns the lines that only one of two texts has.
func diffLines(recorded, sent string) string {
	a, b := strings.Split(recorded, "\n"), strings.Split(sent, "\n")
	var out strings.Builder
	for _, line := range a {
		if !slices.Contains(b, line) {
			out.WriteString("  - " + line + "\n")
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			out.WriteString("  + " + line + "\n")
		}
	}
	return out.String()
}
