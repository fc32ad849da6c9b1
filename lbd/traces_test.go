package lbd

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"skyserve/internal/service"
)

// spans is a collector that stores the received spans.
type spans struct {
	*httptest.Server
	mu  sync.Mutex
	all []*otlp.Span
}

func newSpans(t *testing.T) *spans {
	s := &spans{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		var got collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(data, &got)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, rs := range got.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				s.all = append(s.all, ss.Spans...)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// spanAttributes returns the attributes of a span, by key.
func spanAttributes(s *otlp.Span) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		switch v := a.Value; {
		case v.GetStringValue() != "":
			all[a.Key] = v.GetStringValue()
		default:
			all[a.Key] = fmt.Sprint(v.GetIntValue())
		}
	}
	return all
}

// A request that one balancer forwards to another is one trace, from the client's span to the engine.
func TestForwardedRequestIsOneTrace(t *testing.T) {
	const trace, client0 = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	store := newSpans(t)
	var mu sync.Mutex
	var traceparent string
	e := newEngine(t, "m", "")
	inner := e.Config.Handler
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			mu.Lock()
			traceparent = r.Header.Get("traceparent")
			mu.Unlock()
		}
		inner.ServeHTTP(w, r)
	})
	balancer := service.BalancerSpec{Traces: store.URL}
	eu := start(t, service.BalancerConfig{ID: "lb-eu", Region: "local/eu", PeerToken: "p", Balancer: balancer, Replicas: []service.ReplicaConfig{{ID: "eu-0", URL: e.URL}}}, Options{})
	us := start(t, service.BalancerConfig{ID: "lb-us", Region: "local/us", PeerToken: "p", Balancer: balancer, Peers: []service.PeerConfig{{ID: "lb-eu", Region: "local/eu", URL: eu.public}}}, Options{})
	us.serves(t)
	a := ask(t, client(t), us.public, "m", "Traceparent", "00-"+trace+"-"+client0+"-01", "X-Request-Id", "r1")
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	for _, n := range []*node{us, eu} { // buffered spans are sent at the end
		n.stop()
		if err := n.wait(); err != nil {
			t.Fatal(err)
		}
	}

	store.mu.Lock()
	defer store.mu.Unlock()
	below := map[string]*otlp.Span{} // by name and parent
	for _, s := range store.all {
		if got := hex.EncodeToString(s.TraceId); got != trace {
			t.Errorf("span %s is of trace %s", s.Name, got)
		}
		below[s.Name+" "+hex.EncodeToString(s.ParentSpanId)] = s
	}
	parent := client0
	for _, step := range []struct {
		name string
		want map[string]string
	}{
		{"request", map[string]string{"skyserve.outcome": "finished", "skyserve.request.id": "r1", "gen_ai.usage.output_tokens": "3"}},
		{"forward", map[string]string{"skyserve.peer": "lb-eu", "skyserve.reason": "offload", "http.response.status_code": "200"}},
		{"request", map[string]string{"skyserve.outcome": "finished", "skyserve.from": "lb-us", "gen_ai.request.model": "m"}},
		{"dispatch", map[string]string{"skyserve.replica": "eu-0", "http.response.status_code": "200"}},
	} {
		s := below[step.name+" "+parent]
		if s == nil {
			t.Fatalf("no span %s below %s among %d", step.name, parent, len(store.all))
		}
		got := spanAttributes(s)
		for key, want := range step.want {
			if got[key] != want {
				t.Errorf("span %s: %s is %q, want %q", step.name, key, got[key], want)
			}
		}
		parent = hex.EncodeToString(s.SpanId)
		if step.name == "request" && below["queue "+parent] == nil {
			t.Error("the queue time has no span")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := "00-" + trace + "-" + parent + "-01"; traceparent != want {
		t.Errorf("the engine received %q, want %q", traceparent, want)
	}
}

// Without a collector a client's trace headers are forwarded unchanged.
func TestTraceparentIsForwardedWithoutTraces(t *testing.T) {
	const given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceparent := make(chan string, 1)
	e := newEngine(t, "m", "")
	inner := e.Config.Handler
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			traceparent <- r.Header.Get("traceparent")
		}
		inner.ServeHTTP(w, r)
	})
	n := start(t, service.BalancerConfig{ID: "lb-us", Region: "local/us", Replicas: []service.ReplicaConfig{{ID: "us-0", URL: e.URL}}}, Options{})
	n.serves(t)
	if a := ask(t, client(t), n.public, "m", "Traceparent", given); a.status != http.StatusOK || <-traceparent != given {
		t.Errorf("status %d, or another trace than the client's", a.status)
	}
}

// Secrets and texts of clients never appear in the log, in metrics or in traces.
func TestSecretsAreNotExposed(t *testing.T) {
	secrets := map[string]string{"key": "sk-clients-key", "foreign": "sk-unknown-key", "peer": "peers-token", "admin": "admins-token", "text": "whispered words"}
	t.Setenv("TEST_KEYS", secrets["key"])
	store := newSpans(t)
	e := newEngine(t, "m", "")
	dead := newEngine(t, "m", "")
	var log lines
	n := start(t, service.BalancerConfig{
		ID: "lb-us", Region: "local/us", PeerToken: secrets["peer"],
		Balancer: service.BalancerSpec{Auth: &service.Auth{KeysFrom: "env:TEST_KEYS"}, Traces: store.URL, AccessLog: true},
		Replicas: []service.ReplicaConfig{{ID: "us-0", URL: e.URL, Model: "m"}, {ID: "us-1", URL: dead.URL, Model: "m"}},
		Peers:    []service.PeerConfig{{ID: "lb-eu", Region: "local/eu", URL: "http://127.0.0.1:1"}},
	}, Options{Logger: log.logger(), AdminToken: secrets["admin"]})
	n.serves(t)
	dead.Close()
	hc := client(t)
	for _, c := range []struct {
		key, body string
		status    int
	}{
		{"key", `{"model":"m","user":"whispered words","messages":[{"role":"user","content":"whispered words"}]}`, http.StatusOK},
		{"key", `{"model":"whispered words"}`, http.StatusNotFound},
		{"key", `{"model":"m","messages":"whispered words`, http.StatusBadRequest},
		{"foreign", `{"model":"m"}`, http.StatusUnauthorized},
	} {
		for range 4 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.public+"/v1/chat/completions?api_key="+secrets["foreign"], strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+secrets[c.key])
			res, err := hc.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != c.status {
				t.Errorf("%s: status %d, want %d", c.body, res.StatusCode, c.status)
			}
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.adminURL+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secrets["admin"])
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("metrics: status %d, error %v", res.StatusCode, err)
	}
	n.stop()
	if err := n.wait(); err != nil {
		t.Fatal(err)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	var traces strings.Builder
	for _, s := range store.all {
		traces.WriteString(s.String())
	}
	if !strings.Contains(log.String(), "msg=request") || len(store.all) == 0 {
		t.Fatalf("nothing was recorded: %d spans, log %q", len(store.all), log.String())
	}
	for place, text := range map[string]string{"the log": log.String(), "the metrics": string(metrics), "the traces": traces.String()} {
		for name, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows a secret (%s)", place, name)
			}
		}
	}
}
