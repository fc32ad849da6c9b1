package tui

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

var update = flag.Bool("update", false, "write the golden frames anew")

// noon is the time of every test.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// replica is a busy replica; load is 0..1.
func replica(id, gpu string, load float64) telemetry.ReplicaSnapshot {
	return telemetry.ReplicaSnapshot{
		ID: id, URL: "http://10.0.0.7:8000", Model: "meta-llama/Llama-3.1-8B-Instruct", GPU: gpu, State: service.StateReady,
		Pending: ptr(int(load * 4)), Running: ptr(int(load * 60)), Outstanding: int(load * 63), KV: ptr(load),
		PrefixHitRate: ptr(0.4 + load/3), OutputTokensPerSecond: ptr(load * 1400), AgeMillis: ptr(int64(80)),
	}
}

// troubled is a replica without metrics.
func troubled(id string, state service.ReplicaState, reason string) telemetry.ReplicaSnapshot {
	return telemetry.ReplicaSnapshot{ID: id, Model: "meta-llama/Llama-3.1-8B-Instruct", GPU: "L4", State: state, Reason: reason}
}

// region is a region under load with one balancer.
func region(name string, load float64, replicas ...telemetry.ReplicaSnapshot) telemetry.RegionSnapshot {
	id := "lb-" + service.Region(name).ShortName() + "-0"
	return telemetry.RegionSnapshot{
		Name: service.Region(name), Replicas: replicas, Queued: int(load * 9),
		Balancers:         []telemetry.BalancerSnapshot{{ID: id, Endpoint: "http://127.0.0.1:8001", State: "READY", RTTMillis: ptr(83.4), AgeMillis: 60}},
		RequestsPerSecond: ptr(load * 42), OutputTokensPerSecond: ptr(load * 5600), PrefixHitRate: ptr(0.4 + load/3),
		TTFT: &telemetry.Percentiles{P50: 180 * (1 + load), P90: 600 * (1 + 2*load)}, ForwardedIn: int64(load * 900), ForwardedOut: int64(load * 12000),
	}
}

// normal is a typical service: one replica drains, one has failed, and one peer is missing.
func normal() *telemetry.Snapshot {
	draining := replica("us-3", "H100", 0.46)
	draining.State, draining.Reason = service.StateDraining, "rolling update to image v0.11.2"
	donated := replica("us-10", "L4", 0)
	donated.State = service.StateDonated
	lost := troubled("ap-2", service.StateNotReady, "GET http://10.0.2.2:8000/v1/models: connection refused")
	lost.AgeMillis = ptr(int64(16200))
	us := region("aws/us-east-1", 0.5, replica("us-0", "L4", 0.45), donated, replica("us-1", "H100", 0.57), draining)
	us.Replicas[0].Version, us.Replicas[0].ReadySince = "0.11.0", ptr(noon.Add(-3*time.Hour))
	us.Replicas[0].GPUs = []telemetry.GPUFigures{{Utilisation: ptr(0.64), MemoryUsed: ptr(int64(20 << 30)), Memory: ptr(int64(24 << 30)), Temperature: ptr(71.0)}}
	us.Replicas[2].Version, us.Replicas[2].ReadySince = "0.11.0", ptr(noon.Add(-26*time.Minute))
	us.Replicas[2].GPUs = []telemetry.GPUFigures{{Utilisation: ptr(0.97), MemoryUsed: ptr(int64(76 << 30)), Memory: ptr(int64(80 << 30)), Temperature: ptr(87.0)}}
	us.Balancers[0].RTTMillis, us.Balancers[0].AgeMillis = nil, 0
	ap := region("aws/ap-northeast-1", 0.2, replica("ap-0", "L4", 0.17), troubled("ap-1", service.StateProvisioning, "waiting for spot capacity of g6.xlarge in ap-northeast-1c"), lost)
	ap.Balancers = append(ap.Balancers, telemetry.BalancerSnapshot{
		ID: "lb-ap-northeast-1-1", Endpoint: "http://127.0.0.1:8004", State: "UNREACHABLE", Reason: "no heartbeat for 4.1s", AgeMillis: 4100,
	})
	quiet := telemetry.RegionSnapshot{Name: "static/paris"}
	us.ForwardedTo = []telemetry.Flow{{Region: "aws/ap-northeast-1", Requests: 180}, {Region: "gcp/europe-west4", Requests: 5820}}
	ap.ForwardedTo = []telemetry.Flow{{Region: "aws/us-east-1", Requests: 2400}}
	const llama = "meta-llama/Llama-3.1-8B-Instruct"
	us.Models = []telemetry.ModelSnapshot{{Model: llama, Queued: 1, Deferred: 3, FirstTokens: 90_000, SLOMisses: 1200, Traffic: ptr(traffic(1260, 3, 9))}}
	ap.Models = []telemetry.ModelSnapshot{{Model: llama, Queued: 1, FirstTokens: 9000, SLOMisses: 800, Traffic: ptr(traffic(504, 0, 60))}}
	us.Keys = []telemetry.KeyTraffic{{Key: "batch-jobs", Tenant: "acme", Traffic: traffic(200, 40, 0)}, {Key: "web", Tenant: "acme", Traffic: traffic(1060, 0, 9)}}
	ap.Keys = []telemetry.KeyTraffic{{Key: "ana@example.com", Traffic: unpricedTraffic(504, 60)}}
	return &telemetry.Snapshot{
		At: noon, Service: "chat",
		Regions:  []telemetry.RegionSnapshot{us, region("gcp/europe-west4", 0.95, replica("eu-0", "L4", 0.96), replica("eu-1", "L4", 0.82)), ap, quiet},
		Strategy: "lt-ua",
		Forecast: []telemetry.LoadForecast{
			{Model: llama, Region: "aws/us-east-1", Forecaster: "auto", At: noon, StepSeconds: 300, MeanTPS: wave(12, 3000, 900), Lo90TPS: wave(12, 2400, 800), Hi90TPS: wave(12, 3700, 1000), Peak: telemetry.Peak{Mean: 4300, P95: 5100}},
			{Model: llama, Region: "gcp/europe-west4", Forecaster: "arima", At: noon, StepSeconds: 300, MeanTPS: wave(12, 2000, 300), Lo90TPS: wave(12, 1700, 300), Hi90TPS: wave(12, 2500, 300), Peak: telemetry.Peak{Mean: 2600, P95: 2900}, Deviation: "2.1x the forecast, for 12m (burst)"},
		},
		Targets: []telemetry.PlannedCapacity{{Model: llama, Region: "aws/us-east-1", Count: 5, ReplicaTPS: 1300, PeakTPS: 4500}, {Model: llama, Region: "gcp/europe-west4", Count: 1, ReplicaTPS: 2800, PeakTPS: 2700}},
		Prices:  []telemetry.Price{{Region: "aws/us-east-1", GPU: "L4", USDPerHour: 0.8048}, {Region: "aws/us-east-1", GPU: "H100", USDPerHour: 6.88}, {Region: "gcp/europe-west4", GPU: "L4", USDPerHour: 0.7711}},
		Plan: &telemetry.PlanSummary{
			At: noon, Status: "optimal", CostPerHour: telemetry.PlanCost{Current: ptr(9.66), Planned: ptr(11.27)},
			Changes: []telemetry.PlanChange{
				{Model: llama, Region: "aws/us-east-1", GPU: "L4", Current: 2, Delta: 3, Planned: 5, Reason: "peak of 4.5k uncached prompt tokens/s at 12:40; 2 x L4 serve up to 2.6k: add 3 for a capacity of 6.5k, $2.41/h more; determined by local demand"},
				{Model: llama, Region: "gcp/europe-west4", GPU: "L4", Current: 2, Delta: -1, Planned: 1, Reason: "peak of 2.7k uncached prompt tokens/s at 12:30; 2 x L4 serve up to 5.6k: donate 1, capacity 2.8k remains, $0.80/h less; determined by the minimum of 1"},
			},
			Assumed: []string{"Llama-3.1-8B-Instruct: prefix hit rate of 57 %, as in the last day"},
		},
		Donations: []telemetry.Donation{{Replica: "us-10", Model: llama, GPU: "L4", Region: "aws/us-east-1", Since: noon.Add(-90 * time.Minute), Until: ptr(noon.Add(30 * time.Minute)), RevenuePerHour: 0.3}},
		Events: []telemetry.Event{
			{At: noon.Add(-90 * time.Minute), ID: "1", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventDonate, Model: llama, Region: "aws/us-east-1", Object: "us-10", Message: "donated us-10", Reason: "KV memory 21 % used, below 30 %, 3 replicas planned; replicas before: 4"},
			{At: noon.Add(-50 * time.Minute), ID: "3", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventLaunch, Model: llama, Region: "aws/us-east-1", Object: "us-1", Message: "launched us-1", Reason: "KV memory 82 % used, above 70 %; replicas before: 2"},
			{At: noon.Add(-4 * time.Minute), ID: "2", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventFailure, Model: llama, Region: "aws/ap-northeast-1", Object: llama, Message: "scaling failed", Reason: "no spot capacity of g6.xlarge in ap-northeast-1a, -1c"},
		},
	}
}

// traffic is a minute of requests, most of them served.
func traffic(served, limited, failed int64) telemetry.Traffic {
	ms := 100 + float64(served)/4
	return telemetry.Traffic{
		Seconds: 60, Outcomes: telemetry.Outcomes{Served: served, Limited: limited, Failed: failed, Retries: failed / 2},
		Usage: telemetry.Usage{Requests: served, PromptTokens: 180 * served, CachedTokens: 108 * served, OutputTokens: 64 * served, PricedRequests: served, Cost: service.NanoUSD(50_000 * served)},
		TTFT:  &telemetry.Percentiles{P50: ms, P90: 3 * ms, P99: 8 * ms}, E2E: &telemetry.Percentiles{P50: 9 * ms, P90: 15 * ms, P99: 30 * ms},
	}
}

// unpricedTraffic is traffic of a model without a price.
func unpricedTraffic(served, failed int64) telemetry.Traffic {
	t := traffic(served, 0, failed)
	t.Usage.PricedRequests, t.Usage.Cost = 0, 0
	return t
}

// wave returns n values that oscillate around a mean.
func wave(n int, mean, swing float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = mean + swing*math.Sin(float64(i)/2)
	}
	return v
}

// crowd is a service of many replicas in several regions.
func crowd(regions, replicas int) *telemetry.Snapshot {
	s := &telemetry.Snapshot{At: noon, Service: "chat"}
	for i := range regions {
		var rs []telemetry.ReplicaSnapshot
		for k := range replicas {
			rs = append(rs, replica(fmt.Sprintf("r%d-%d", i, k), []string{"L4", "H100"}[k%2], float64((i*31+k*17)%100)/100))
		}
		s.Regions = append(s.Regions, region(fmt.Sprintf("aws/region-%d", i), float64(i%10)/10, rs...))
	}
	return s
}

// hostile is a service whose names contain control sequences.
func hostile() *telemetry.Snapshot {
	s := normal()
	s.Service = "\x1b[2J\x1b]0;owned\x07界界界"
	for i := range s.Regions {
		r := &s.Regions[i]
		r.Name = service.Region(fmt.Sprintf("雲/\u202eevil-%d\n\x00", i))
		for k := range r.Replicas {
			r.Replicas[k].ID = fmt.Sprintf("複製品-%d\x1b[31m\xff", k)
			r.Replicas[k].Model = "👩‍👩‍👧‍👦/模型e\u0301\u200d🏳️‍🌈"
			r.Replicas[k].Reason = "line\r\none\ttab\u2028sep"
		}
	}
	return s
}

// script is a fetcher that returns what the test sets.
type script struct {
	snapshot *telemetry.Snapshot
	err      error
	calls    int
}

func (s *script) Fetch(context.Context) (*telemetry.Snapshot, string, error) {
	s.calls++
	if s.err != nil {
		return nil, "", s.err
	}
	copied := *s.snapshot
	return &copied, "http://127.0.0.1:8101", nil
}

func (s *script) String() string { return "http://127.0.0.1:8101" }

var errRefused = errors.New("http://127.0.0.1:8101: connection refused")

// checkFrame fails if a frame exceeds its size or contains control characters other than
// colour codes.
func checkFrame(t *testing.T, frame string, w, h int) {
	t.Helper()
	lines := strings.Split(frame, "\n")
	if h > 0 && len(lines) > h {
		t.Errorf("%dx%d: %d lines", w, h, len(lines))
	}
	for i, l := range lines {
		if n := max(ansi.StringWidth(l), ansi.StringWidthWc(l)); w > 0 && n > w {
			t.Errorf("%dx%d: line %d is %d wide: %q", w, h, i, n, l)
		}
		for _, r := range ansi.Strip(l) {
			if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e' || r == '\u200d' {
				t.Errorf("%dx%d: line %d holds %U: %q", w, h, i, r, l)
			}
		}
	}
}

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("reading the golden frame (write it with -update): %v", err)
	}
	if got+"\n" != string(want) {
		t.Errorf("%s differs; got:\n%s\nwant:\n%s", file, got, want)
	}
}

// deskOperator returns the results that a test sets, and records the actions that it
// receives.
type deskOperator struct {
	err    error
	orders []Action
}

func (o *deskOperator) Requests(context.Context, int) ([]RequestRow, error) {
	const llama = "meta-llama/Llama-3.1-8B-Instruct"
	row := func(id, state, target, why string, at time.Duration, queued float64) RequestRow {
		return RequestRow{telemetry.RequestSummary{
			Request: id, At: noon.Add(-at), Balancer: "lb-us-east-1-0", Region: "aws/us-east-1", Model: llama, Tier: "IW-F", State: state,
			Target: target, Policy: "cost", Tries: 1, MatchBytes: 1536, PromptBytes: 2048, QueuedMillis: queued,
		}, why}
	}
	done := row("req-2", "finished", "us-1", "lowest estimated latency", 3*time.Second, 0.4)
	done.Status, done.TTFTMillis, done.E2EMillis, done.PromptTokens, done.CachedTokens, done.OutputTokens = 200, ptr(182.0), ptr(2410.0), ptr(512), ptr(384), ptr(64)
	otherCloud := row("req-3", "sent", "lb-europe-west4-0", "no local replica available; forwarded to a peer with capacity", 2*time.Second, 1240)
	otherCloud.Forwarded, otherCloud.Tenant = true, "acme"
	refused := row("req-1", "rejected", "", "no capacity within the maximum queue time", 9*time.Second, 60000)
	refused.Status, refused.Tier = 503, "NIW"
	waits := row("req-4", "queued", "us-0", "waiting for us-0, which is full: lower estimated latency than elsewhere", time.Second, 820)
	return []RequestRow{waits, otherCloud, done, refused}, o.err
}

func (o *deskOperator) Explain(_ context.Context, request string, _ int) (string, error) {
	return "all about " + request + "\nPolicy cost chose us-1: lowest estimated latency", o.err
}

func (o *deskOperator) Load(context.Context) ([]LoadSeries, error) {
	l := LoadSeries{Model: "meta-llama/Llama-3.1-8B-Instruct", Region: "aws/us-east-1", Start: noon.Add(-3 * time.Hour), Step: time.Minute, TPS: wave(180, 2500, 1200)}
	l.TPS[20] = math.NaN()
	return []LoadSeries{l}, o.err
}

func (o *deskOperator) Spec(context.Context) (string, error) {
	return "name: chat\nmodels:\n- name: llama\n", o.err
}

func (o *deskOperator) Logs(_ context.Context, id string, n int) ([]string, error) {
	lines := make([]string, min(n, 100))
	for i := range lines {
		lines[i] = fmt.Sprintf("%s says line %d", id, i)
	}
	return lines, o.err
}

func (o *deskOperator) Shell(_ context.Context, id string) (*exec.Cmd, error) {
	return exec.Command("true", id), o.err
}

func (o *deskOperator) Perform(_ context.Context, order Action) (string, error) {
	o.orders = append(o.orders, order)
	return "done", o.err
}

// withBatches is normal with batches: one in time, one late, one without a known rate, one being validated.
func withBatches() *telemetry.Snapshot {
	s := normal()
	s.Batches = []telemetry.BatchState{
		{ID: "batch_019ab3f2c01k3m9qzp4xt7w", Tenant: "acme", Status: "in_progress", Model: "chat-small", Total: 20_000, Completed: 15_500, CreatedAt: noon.Add(-3 * time.Hour), Deadline: noon.Add(time.Hour), RequestsPerSecond: ptr(2.5), FinishAt: ptr(noon.Add(30 * time.Minute)), CostUSD: ptr(1.27)},
		{ID: "batch_019ab3f2c02aa5tq7rn1d0e", Tenant: "acme", Status: "in_progress", Total: 50_000, Completed: 1200, Failed: 31, CreatedAt: noon.Add(-time.Hour), Deadline: noon.Add(2 * time.Hour), RequestsPerSecond: ptr(2.5), FinishAt: ptr(noon.Add(5 * time.Hour))},
		{ID: "batch_019ab3f2c03uu8fh2kc6y9b", Tenant: "lab", Status: "in_progress", Model: "chat-small", Total: 300, CreatedAt: noon.Add(-time.Minute), Deadline: noon.Add(24 * time.Hour), RequestsPerSecond: ptr(0.0)},
		{ID: "batch_019ab3f2c04gs1wv5jx8p3z", Status: "validating", CreatedAt: noon, Deadline: noon.Add(24 * time.Hour)},
	}
	return s
}
