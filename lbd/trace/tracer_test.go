package trace

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/testkit"

	"github.com/prometheus/client_golang/prometheus"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sampled is a client's trace, as in its header.
const (
	sampled    = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	notSampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// store is a collector that stores received spans, or returns a status.
type store struct {
	*httptest.Server
	status int

	mu    sync.Mutex
	spans map[string]*otlp.Span
	owner map[string]string // resource attributes
}

func newStore(t *testing.T, status int) *store {
	s := &store{status: status, spans: map[string]*otlp.Span{}, owner: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.take))
	t.Cleanup(s.Close)
	return s
}

func (s *store) take(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unpacked
	}
	data, err := io.ReadAll(body)
	var got collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &got)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range got.ResourceSpans {
		for _, a := range rs.Resource.Attributes {
			s.owner[a.Key] = a.Value.GetStringValue()
		}
		for _, ss := range rs.ScopeSpans {
			for _, span := range ss.Spans {
				s.spans[span.Name] = span
			}
		}
	}
	w.WriteHeader(s.status)
}

// newTracer returns a tracer that is independent of the environment.
func newTracer(t *testing.T, o Options) *Tracer {
	t.Helper()
	tracer, err := New(t.Context(), o)
	if err != nil || tracer == nil {
		t.Fatalf("tracer %v, error %v", tracer, err)
	}
	return tracer
}

// closeIt closes a tracer within a second.
func closeIt(t *testing.T, tracer *Tracer) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return tracer.Close(ctx)
}

// spanCounts returns skyserve_trace_spans_total by state.
func spanCounts(t *testing.T, tracer *Tracer) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	tracer.Collect(reg)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, m := range families[0].Metric {
		counts[m.Label[0].GetValue()] = m.Counter.GetValue()
	}
	return counts
}

func TestSpansReachTheCollector(t *testing.T) {
	s := newStore(t, http.StatusOK)
	tracer := newTracer(t, Options{Endpoint: s.URL, Service: "chat", Balancer: "lb-us-0", Region: "local/us", Version: "v1"})
	at := time.Unix(1000, 0)
	in := http.Header{"Traceparent": {sampled}}
	request := tracer.StartSpan(in, at)
	if got := request.Trace(); got != sampled[3:35] {
		t.Errorf("the trace is %s, want the client's", got)
	}
	try := request.StartChild("dispatch", true, at.Add(time.Second))
	out := http.Header{"Traceparent": {sampled}, "Tracestate": {"other=1"}}
	try.Inject(out)
	for key, value := range map[string]any{"text": "a", "n": 7, "share": 0.5, "yes": true} {
		try.SetAttribute(key, value)
	}
	try.Fail("us-0 cannot be reached")
	try.End(at.Add(2 * time.Second))
	request.End(at.Add(3 * time.Second))
	if err := closeIt(t, tracer); err != nil {
		t.Fatal(err)
	}

	parent, child := s.spans["request"], s.spans["dispatch"]
	if parent == nil || child == nil {
		t.Fatalf("the collector has %v", s.spans)
	}
	if got := hex.EncodeToString(parent.ParentSpanId); got != sampled[36:52] {
		t.Errorf("the request's parent is %s, want the client's span", got)
	}
	if string(child.ParentSpanId) != string(parent.SpanId) || child.Kind != otlp.Span_SPAN_KIND_CLIENT || parent.Kind != otlp.Span_SPAN_KIND_SERVER {
		t.Errorf("the try is a %s below %x, the request a %s", child.Kind, child.ParentSpanId, parent.Kind)
	}
	if got, want := out.Get("traceparent"), "00-"+sampled[3:35]+"-"+hex.EncodeToString(child.SpanId)+"-01"; got != want || out.Get("tracestate") != "" {
		t.Errorf("a target receives %q and %q, want %q", got, out.Get("tracestate"), want)
	}
	if took := child.EndTimeUnixNano - child.StartTimeUnixNano; took != uint64(time.Second) {
		t.Errorf("the try took %d ns", took)
	}
	if child.Status.GetMessage() != "us-0 cannot be reached" || len(child.Attributes) != 4 {
		t.Errorf("the try tells %v and %v", child.Status, child.Attributes)
	}
	for key, want := range map[string]string{"service.name": "skyserve", "service.namespace": "chat", "service.instance.id": "lb-us-0", "service.version": "v1"} {
		if s.owner[key] != want {
			t.Errorf("%s is %q, want %q", key, s.owner[key], want)
		}
	}
	if c := spanCounts(t, tracer); c["ended"] != 2 || c["sent"] != 2 || c["lost"] != 0 {
		t.Errorf("counts %v", c)
	}
}

func TestSampler(t *testing.T) {
	for _, c := range []struct {
		sampler, arg, parent string
		recorded             bool
	}{
		{"", "", "", true},
		{"", "", sampled, true},
		{"", "", notSampled, false},
		{"always_off", "", sampled, false},
		{"always_on", "", notSampled, true},
		{"parentbased_always_off", "", "", false},
		{"traceidratio", "0", sampled, false},
		{"", "", "nonsense", true},
	} {
		t.Setenv("OTEL_TRACES_SAMPLER", c.sampler)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", c.arg)
		s := newStore(t, http.StatusOK)
		tracer := newTracer(t, Options{Endpoint: s.URL})
		header := http.Header{}
		if c.parent != "" {
			header.Set("traceparent", c.parent)
		}
		request := tracer.StartSpan(header, time.Unix(1000, 0))
		if got := request.Trace() != ""; got != c.recorded {
			t.Errorf("%+v: recorded %v", c, got)
		}
		out := http.Header{}
		request.Inject(out)
		if flag := strings.HasSuffix(out.Get("traceparent"), "-01"); flag != c.recorded {
			t.Errorf("%+v: a target receives %q", c, out.Get("traceparent"))
		}
		request.SetAttribute("n", 1)
		request.End(time.Unix(1001, 0))
		if err := closeIt(t, tracer); err != nil {
			t.Error(err)
		}
		if got := s.spans["request"] != nil; got != c.recorded {
			t.Errorf("%+v: sent %v", c, got)
		}
	}
}

// If a collector is unreachable or rejects spans, spans are lost and one line is logged.
func TestCollectorThatFails(t *testing.T) {
	for name, url := range map[string]string{"gone": "http://" + testkit.FreeAddr(), "refuses": newStore(t, http.StatusForbidden).URL} {
		t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
		t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
		var text strings.Builder
		tracer := newTracer(t, Options{Endpoint: url, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		const requests = 10_000
		for range requests {
			s := tracer.StartSpan(http.Header{}, time.Unix(1000, 0))
			s.End(time.Unix(1001, 0))
		}
		_ = closeIt(t, tracer) // it reports that it could not send; only its end is checked
		c := spanCounts(t, tracer)
		if c["ended"] != requests || c["sent"] != 0 {
			t.Errorf("%s: counts %v", name, c)
		}
		if lines := strings.Count(text.String(), "\n"); lines > 1 {
			t.Errorf("%s: %d lines in the log: %s", name, lines, text.String())
		}
	}
}

func TestEndpoint(t *testing.T) {
	for _, c := range []struct {
		env            map[string]string
		base, want, by string
		bad            bool
	}{
		{},
		{base: "http://c:4318", want: "http://c:4318/v1/traces"},
		{base: "https://c/otlp/", want: "https://c/otlp/v1/traces"},
		{env: map[string]string{EnvEndpoint: "http://e:4318"}, want: "http://e:4318/v1/traces", by: EnvEndpoint},
		{env: map[string]string{EnvEndpoint: "http://e:4318"}, base: "http://c:4318", want: "http://c:4318/v1/traces"},
		{env: map[string]string{EnvEndpoint: "http://e:4318", EnvTracesEndpoint: "http://t/x"}, want: "http://t/x", by: EnvTracesEndpoint},
		{env: map[string]string{envDisabled: "true"}, base: "http://c:4318"},
		{env: map[string]string{envExporter: "none", EnvEndpoint: "http://e:4318"}},
		{env: map[string]string{envProtocol: "grpc"}, base: "http://c:4317", by: envProtocol, bad: true},
		{env: map[string]string{envTracesProtocol: "grpc", envProtocol: "http/json"}, base: "http://c:4317", by: envTracesProtocol, bad: true},
		{env: map[string]string{envProtocol: "grpc"}},
		{env: map[string]string{EnvEndpoint: "e:4318"}, by: EnvEndpoint, bad: true},
		{base: "c:4318", bad: true},
		{base: "ftp://c", bad: true},
		{base: "http://", bad: true},
		{base: "http://secret@%zz", bad: true},
	} {
		for _, name := range []string{EnvEndpoint, EnvTracesEndpoint, envDisabled, envExporter, envProtocol, envTracesProtocol} {
			t.Setenv(name, c.env[name])
		}
		to, by, err := Endpoint(c.base)
		if to != c.want || by != c.by || (err != nil) != c.bad {
			t.Errorf("%v, %q: endpoint %q by %q, error %v; want %q by %q", c.env, c.base, to, by, err, c.want, c.by)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("an error shows what was found: %v", err)
		}
		if tracer, err := New(t.Context(), Options{Endpoint: c.base}); (err != nil) != c.bad || (tracer != nil) != (c.want != "") {
			t.Errorf("%v, %q: tracer %v, error %v", c.env, c.base, tracer, err)
		} else if tracer != nil {
			_ = closeIt(t, tracer) // there was nothing to send
		}
	}
}

func BenchmarkRequestAndTry(b *testing.B) {
	for name, parent := range map[string]string{"sampled": sampled, "not": notSampled} {
		b.Run(name, func(b *testing.B) {
			gone := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
			defer gone.Close()
			tracer, err := New(b.Context(), Options{Endpoint: gone.URL})
			if err != nil {
				b.Fatal(err)
			}
			header, out, at := http.Header{"Traceparent": {parent}}, http.Header{}, time.Unix(1000, 0)
			b.ReportAllocs()
			for b.Loop() {
				request := tracer.StartSpan(header, at)
				try := request.StartChild("dispatch", true, at)
				try.Inject(out)
				try.SetAttribute("skyserve.replica", "us-0")
				try.End(at)
				request.SetAttribute("skyserve.outcome", "finished")
				request.End(at)
			}
			b.StopTimer()
			_ = tracer.Close(b.Context()) // only the time above is measured
		})
	}
}
