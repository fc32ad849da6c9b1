package telemetry_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// exchange is the expected request and the response of the scripted server.
type exchange struct {
	method, target, body string // expected; target is the path with its query
	status               int
	response             string
}

// serve starts a server that responds to one exchange, and returns its client.
func serve(t *testing.T, e exchange) *telemetry.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading the request: %v", err)
		}
		if r.Method != e.method || r.URL.RequestURI() != e.target || string(body) != e.body {
			t.Errorf("got %s %s %q, want %s %s %q", r.Method, r.URL.RequestURI(), body, e.method, e.target, e.body)
		}
		w.WriteHeader(e.status)
		io.WriteString(w, e.response)
	}))
	t.Cleanup(srv.Close)
	return telemetry.NewClient(srv.URL+"/", nil)
}

func TestSnapshotDistinguishesUnknownFromZero(t *testing.T) {
	c := serve(t, exchange{"GET", "/v1/snapshot", "", 200, `{"service":"chat","regions":[{"name":"local/us",
		"replicas":[{"id":"us-0","pending":0,"kv":null}],"requests_per_second":0}]}`})
	s, err := c.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r := s.Regions[0].Replicas[0]
	if s.Service != "chat" || r.Pending == nil || *r.Pending != 0 || r.Running != nil || r.KV != nil {
		t.Errorf("got %+v", r)
	}
	if rps := s.Regions[0].RequestsPerSecond; rps == nil || *rps != 0 {
		t.Errorf("requests_per_second: got %v, want a known 0", rps)
	}
}

func TestATokenIsSentAndNeverShown(t *testing.T) {
	var got []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Values("Authorization")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer srv.Close()
	for token, want := range map[string]string{"": "", "sesame": "Bearer sesame"} {
		hc := telemetry.HTTPClient(token)
		err := telemetry.NewClient(srv.URL, hc).Healthy(t.Context())
		hc.CloseIdleConnections()
		if strings.Join(got, ",") != want {
			t.Errorf("token %q: sent %q", token, got)
		}
		if err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

func TestServiceIsTheTextAsServed(t *testing.T) {
	c := serve(t, exchange{"GET", "/v1/service", "", 200, "name: chat\n"})
	if text, err := c.Service(context.Background()); err != nil || string(text) != "name: chat\n" {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestHistory(t *testing.T) {
	for _, complete := range []bool{true, false} {
		response, err := json.Marshal(map[string]any{"complete": complete, "points": []telemetry.Point{{Minute: 7, Requests: 3}}})
		if err != nil {
			t.Fatal(err)
		}
		c := serve(t, exchange{"GET", "/v1/history?since=5", "", 200, string(response)})
		points, got, err := c.History(context.Background(), 5)
		if err != nil || got != complete || len(points) != 1 || points[0].Minute != 7 || points[0].Requests != 3 {
			t.Errorf("complete=%t: got %v, %t, %v", complete, points, got, err)
		}
	}
}

// Weeks of a service with many balancers are longer than any other response. The text is as long as theirs, with spaces
// in place of points.
func TestLongHistory(t *testing.T) {
	testkit.NotUnderRace(t, "reads one response in one goroutine")
	hc := &http.Client{Transport: transportFunc(func(*http.Request) (*http.Response, error) {
		body := io.MultiReader(strings.NewReader(`{"later":[1],"points":[{"minute":7},`), io.LimitReader(spaces{}, 200<<20), strings.NewReader(`{"minute":8}],"complete":true}`))
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
	})}
	points, complete, err := telemetry.NewClient("http://balancer", hc).History(t.Context(), 5)
	if err != nil || !complete || len(points) != 2 || points[0].Minute != 7 || points[1].Minute != 8 {
		t.Errorf("got %v, %t, %v", points, complete, err)
	}
}

func TestInvalidHistory(t *testing.T) {
	for response, want := range map[string]string{
		``:                                     "unexpected EOF",
		`[]`:                                   "found [, want {",
		`{"complete":true,"points":[`:          "unexpected EOF",
		`{"complete":true,"points":{}}`:        "found {, want [",
		`{"complete":true,"points":[{"minute"`: "unexpected EOF",
		`{"complete":7}`:                       "cannot unmarshal number",
	} {
		c := serve(t, exchange{"GET", "/v1/history?since=5", "", 200, response})
		if points, complete, err := c.History(t.Context(), 5); err == nil || !strings.Contains(err.Error(), want) || points != nil || complete {
			t.Errorf("%q: got %v, %t, %v, want %q", response, points, complete, err, want)
		}
	}
}

// transportFunc is a http.RoundTripper.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRequests(t *testing.T) {
	c := serve(t, exchange{"GET", "/v1/requests?limit=7", "", 200, `{"requests":[{"request":"r2","state":"sent","ttft_ms":null},{"request":"r1","ttft_ms":0}]}`})
	rows, err := c.Requests(t.Context(), 7)
	if err != nil || len(rows) != 2 || rows[0].Request != "r2" || rows[0].TTFTMillis != nil || rows[1].TTFTMillis == nil {
		t.Errorf("got %+v, %v", rows, err)
	}
	c = serve(t, exchange{"GET", "/v1/requests?limit=0", "", 400, `{"error":{"message":"limit must be a number from 1 to 1000, got \"0\""}}`})
	if _, err := c.Requests(t.Context(), 0); err == nil || !strings.Contains(err.Error(), `returned 400: limit must be a number from 1 to 1000, got "0"`) {
		t.Errorf("got %v", err)
	}
}

func TestWorkers(t *testing.T) {
	c := serve(t, exchange{"GET", "/workers", "", 200, `{"workers":[{"id":"us-0","url":"http://r","epoch":4,"state":"NOT_READY","reason":"refused"}]}`})
	got, err := c.Workers(context.Background())
	want := telemetry.Worker{
		ReplicaConfig: service.ReplicaConfig{ID: "us-0", URL: "http://r", Epoch: 4},
		State:         service.StateNotReady, Reason: "refused",
	}
	if err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestAddWorker(t *testing.T) {
	const body = `{"id":"us-0","url":"http://r","epoch":4}`
	tests := []struct {
		status int
		added  bool
		err    error
	}{{201, true, nil}, {200, false, nil}, {409, false, telemetry.ErrConflict}}
	for _, tt := range tests {
		c := serve(t, exchange{"POST", "/workers", body, tt.status, `{}`})
		added, err := c.AddWorker(context.Background(), service.ReplicaConfig{ID: "us-0", URL: "http://r", Epoch: 4})
		if added != tt.added || !errors.Is(err, tt.err) {
			t.Errorf("%d: got %t, %v; want %t, %v", tt.status, added, err, tt.added, tt.err)
		}
	}
}

func TestRemoveWorker(t *testing.T) {
	tests := []struct {
		id     string
		epoch  uint64
		target string
		status int
		err    error
	}{
		{"us-0", 0, "/workers/us-0", 200, nil},
		{"us-0", 9, "/workers/us-0?epoch=9", 200, nil},
		{"http://r:1/", 0, "/workers/http:%2F%2Fr:1%2F", 200, nil},
		{"gone", 0, "/workers/gone", 404, telemetry.ErrNotFound},
		{"us-0", 1, "/workers/us-0?epoch=1", 409, telemetry.ErrConflict},
	}
	for _, tt := range tests {
		c := serve(t, exchange{"DELETE", tt.target, "", tt.status, ``})
		if err := c.RemoveWorker(context.Background(), tt.id, tt.epoch); !errors.Is(err, tt.err) {
			t.Errorf("%s@%d: got %v, want %v", tt.id, tt.epoch, err, tt.err)
		}
	}
}

func TestHealthyAndDecision(t *testing.T) {
	if err := serve(t, exchange{"GET", "/healthz", "", 200, "ok"}).Healthy(context.Background()); err != nil {
		t.Error(err)
	}
	if err := serve(t, exchange{"GET", "/healthz", "", 503, "draining"}).Healthy(context.Background()); err == nil {
		t.Error("a balancer that returns 503 is not healthy")
	}
	c := serve(t, exchange{"GET", "/v1/decisions/req%2F1", "", 200, `{"replica":"us-0"}`})
	if d, err := c.Decision(context.Background(), "req/1"); err != nil || string(d) != `{"replica":"us-0"}` {
		t.Errorf("got %s, %v", d, err)
	}
}

func TestDecisions(t *testing.T) {
	c := serve(t, exchange{"GET", "/v1/decisions", "", 200, `{"balancer":"lb-us-0","region":"local/us","recorded":7,"limit":9,"since":"2026-01-02T03:04:05Z"}`})
	m, err := c.Decisions(context.Background())
	if err != nil || m.Balancer != "lb-us-0" || m.Region != "local/us" || m.Recorded != 7 || m.Limit != 9 || m.Since.Unix() != 1767323045 {
		t.Errorf("got %+v, %v", m, err)
	}
	c = serve(t, exchange{"GET", "/v1/decisions", "", 200, `{"recorded":0,"since":null}`})
	if m, err := c.Decisions(context.Background()); err != nil || m.Since != nil {
		t.Errorf("got %+v, %v: nothing is remembered since never", m, err)
	}
}

func TestErrorsNameRequestAndCause(t *testing.T) {
	tests := []struct {
		name     string
		status   int
		response string
		want     string
	}{
		{"the API's shape", 503, `{"error":{"message":"no store"}}`, "/v1/snapshot returned 503: no store"},
		{"plain text", 500, "boom\nstack\n", "/v1/snapshot returned 500: boom"},
		{"no body", 502, "", "/v1/snapshot returned 502: Bad Gateway"},
		{"a redirect", 302, "", "/v1/snapshot returned 302: Found"},
		{"not JSON", 200, "<html>", "/v1/snapshot: invalid character '<'"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := serve(t, exchange{"GET", "/v1/snapshot", "", tt.status, tt.response}).Snapshot(context.Background())
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "GET http://127.0.0.1:") {
				t.Errorf("got %v, want one with %q and the URL", err, tt.want)
			}
		})
	}
}

func TestStatusErrorCarriesTheStatus(t *testing.T) {
	err := serve(t, exchange{"GET", "/healthz", "", 418, "teapot"}).Healthy(context.Background())
	var se *telemetry.StatusError
	if !errors.As(err, &se) || se.Status != 418 || se.Message != "teapot" || se.Method != "GET" {
		t.Fatalf("got %#v", err)
	}
	if errors.Is(err, telemetry.ErrNotFound) || errors.Is(err, telemetry.ErrConflict) {
		t.Error("418 is neither not found nor a conflict")
	}
}

func TestUnreachableNamesTheURLOnceAndHidesPasswords(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	host := strings.TrimPrefix(srv.URL, "http://")
	srv.Close()
	err := telemetry.NewClient("http://me:secret@"+host, nil).Healthy(context.Background())
	if err == nil || strings.Count(err.Error(), "/healthz") != 1 || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

// The alert of a balancer that rejects a revoked certificate names no cause: the error does.
func TestRejectedCertificateNamesTheNextStep(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	// With TLS 1.3 the client may find the connection closed before it reads the alert.
	srv.TLS = &tls.Config{MaxVersion: tls.VersionTLS12, VerifyConnection: func(tls.ConnectionState) error { return errors.New("revoked") }}
	srv.StartTLS()
	defer srv.Close()
	err := telemetry.NewClient(srv.URL, telemetry.SecureClient(&tls.Config{InsecureSkipVerify: true})).Healthy(t.Context()) //nolint:gosec // it is the server that rejects
	if err == nil || !strings.Contains(err.Error(), "/healthz: the balancer rejects the certificate of this machine (tls: bad certificate): it may have been revoked; 'skyserve connect' with another invitation replaces it") {
		t.Errorf("got %v", err)
	}
}

func TestNoErrorShowsAPassword(t *testing.T) {
	for _, base := range []string{
		"http://me:s3%zzcret@127.0.0.1:1", "http://me:s3/cret@127.0.0.1:1", "http://me:s3cret@[::1", "http://me:s3cret@127.0.0.1:port",
		"http://me:s3\x7fcret@127.0.0.1:1", "me:s3cret@127.0.0.1:1",
	} {
		c := telemetry.NewClient(base, nil)
		err := c.Healthy(context.Background())
		if text := fmt.Sprint(err, c.Base()); err == nil || strings.Contains(text, "s3") || strings.Contains(text, "cret") {
			t.Errorf("%s: %s", base, text)
		}
	}
	for urls, want := range map[string]string{
		"nats://a:4222":                    "nats://a:4222",
		"nats://u:pw@a:4222,nats://u:pw@b": "nats://***@a:4222,nats://***@b",
		"nats://u:pw@a:4222,u:pw@b":        "nats://***@b",
		"nats://token@a":                   "nats://***@a",
		"u:p/w,x@a":                        "***@a",
		"tls://u:p%zz@a:99,tls://b":        "tls://***@a:99,tls://b",
	} {
		if got := telemetry.HideCredentials(urls); got != want {
			t.Errorf("%s: %s, want %s", urls, got, want)
		}
	}
}

func TestErrorsAreSafeToPrint(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, `{"error":{"message":"no\u001b[2J\u0007\r\nfake line\u009b"}}`)
	}))
	defer srv.Close()
	err := telemetry.NewClient(srv.URL, nil).Healthy(context.Background())
	if err == nil || !strings.HasSuffix(err.Error(), "no[2J  fake line") {
		t.Errorf("got %q", err)
	}
}

func TestLongErrorsAreReadWhole(t *testing.T) {
	long := strings.Repeat("regions[1].replicas.min: must be at least 1, got 0; ", 500)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error":{"message":%q}}`, long+"end")
	}))
	defer srv.Close()
	if _, err := telemetry.NewClient(srv.URL, nil).Reload(context.Background()); err == nil || !strings.HasSuffix(err.Error(), "end") {
		t.Errorf("got %v", err)
	}
}

func TestBaseWithoutScheme(t *testing.T) {
	if got := telemetry.NewClient("127.0.0.1:8101", nil).Base(); got != "http://127.0.0.1:8101" {
		t.Errorf("got %s", got)
	}
}

func TestInvalidBaseURL(t *testing.T) {
	if err := telemetry.NewClient("http://[::1", nil).Healthy(context.Background()); err == nil {
		t.Error("want an error")
	}
}

// endless responds with a body that never ends.
type endless struct{}

func (endless) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: io.NopCloser(spaces{}), Request: r}, nil
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte{' '}, len(p))), nil }

func TestResponseSizeIsLimited(t *testing.T) {
	c := telemetry.NewClient("http://x", &http.Client{Transport: endless{}})
	if _, err := c.Snapshot(context.Background()); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("got %v, want a bound", err)
	}
}

func TestContextEndsTheExchange(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := serve(t, exchange{"GET", "/healthz", "", 200, ""}).Healthy(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
