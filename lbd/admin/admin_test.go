package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/peer"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
	"skyserve/lbd/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// balancer is an in-memory fake of all dependencies of the API.
type balancer struct {
	replicas []Replica
	view     core.BalancerView
	stats    proxy.TrafficStats
	peers    []peer.Health
	points   []telemetry.Point
	unstored []telemetry.Point
	complete bool
	broken   error
	since    int64
	events   chan json.RawMessage
}

func (b *balancer) index(id string) int {
	return slices.IndexFunc(b.replicas, func(r Replica) bool { return r.ID == id })
}

func (b *balancer) Add(cfg service.ReplicaConfig) (bool, error) {
	i := b.index(cfg.ID)
	if i < 0 {
		b.replicas = append(b.replicas, Replica{ReplicaConfig: cfg, State: service.StateStarting})
		return true, nil
	}
	if cfg.Epoch < b.replicas[i].Epoch {
		return false, fmt.Errorf("adding replica: %w", proxy.ErrOlderEpoch)
	}
	b.replicas[i].ReplicaConfig = cfg
	return false, nil
}

func (b *balancer) Remove(id string, epoch uint64) (bool, error) {
	i := b.index(id)
	if i < 0 {
		return false, nil
	}
	if epoch != 0 && epoch < b.replicas[i].Epoch {
		return false, fmt.Errorf("removing replica: %w", proxy.ErrOlderEpoch)
	}
	b.replicas = slices.Delete(b.replicas, i, i+1)
	return true, nil
}

func (b *balancer) Drain(id, _ string) bool          { return b.index(id) >= 0 }
func (b *balancer) List() []Replica                  { return b.replicas }
func (b *balancer) View() core.BalancerView          { return b.view }
func (b *balancer) TrafficStats() proxy.TrafficStats { return b.stats }

func (b *balancer) Decision(id string) (record.RequestRecord, bool) {
	return record.RequestRecord{Request: id, Model: "llama"}, id == "req/1"
}

func (b *balancer) DecisionMemory() telemetry.DecisionMemory {
	since := time.Unix(1_700_000_000, 0).UTC()
	return telemetry.DecisionMemory{Balancer: "lb-us-0", Region: "local/us", Recorded: 1, Limit: 4096, Since: &since}
}

// requests returns one request, whose id contains the requested number.
func (b *balancer) requests(limit int) []telemetry.RequestSummary {
	return []telemetry.RequestSummary{{Request: fmt.Sprintf("r%d", limit)}}
}

func (b *balancer) Subscribe() (<-chan json.RawMessage, func()) { return b.events, func() {} }

func (b *balancer) History(_ context.Context, since int64) ([]telemetry.Point, bool, error) {
	b.since = since
	return b.points, b.complete, b.broken
}

func (b *balancer) UnstoredPoints(since int64) []telemetry.Point {
	b.since = since
	return b.unstored
}

func (b *balancer) Usage(_ context.Context, month string) ([]telemetry.UsageRow, bool) {
	used := telemetry.Usage{Requests: 3, PromptTokens: 20, CachedTokens: 8, OutputTokens: 4}
	return []telemetry.UsageRow{{Key: "acme-" + month, Model: "llama", Region: "local/us", Month: used, Day: 1_700_000_000 / 86400, Today: telemetry.Usage{Requests: 1}}}, b.complete
}

// api returns an API for b, configured as in local services.
func api(b *balancer, change func(*Options)) *API {
	o := Options{
		Self:    service.BalancerConfig{Service: "chat", ID: "lb-us-0", Region: "local/us", Listen: "127.0.0.1:8001", Admin: "127.0.0.1:8101"},
		Workers: b, Traffic: b, Decisions: b, Requests: b.requests, History: b, Usage: b, Peers: func() []peer.Health { return b.peers },
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) },
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			switch host {
			case "gpu.internal":
				return []netip.Addr{netip.MustParseAddr("10.0.0.7")}, nil
			case "metadata.google.internal":
				return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
			case "mixed.example":
				return []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fe80::1")}, nil
			}
			return nil, errors.New("no such host")
		},
	}
	if change != nil {
		change(&o)
	}
	return New(o)
}

// call makes one request and returns its status and body.
func call(h http.Handler, method, target, body string, headers ...string) (int, string) {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:8101"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestSnapshotShowsControllerReview(t *testing.T) {
	var review *telemetry.Review
	a := api(&balancer{}, func(o *Options) { o.Review = func() *telemetry.Review { return review } })
	if s := a.Snapshot(); s.Plan != nil || s.Forecast == nil || len(s.Forecast) > 0 {
		t.Errorf("before the first: got %+v, %+v", s.Plan, s.Forecast)
	}
	review = &telemetry.Review{Forecast: []telemetry.LoadForecast{{Model: "llama"}}, Plan: &telemetry.PlanSummary{Status: "optimal"}}
	if s := a.Snapshot(); s.Plan != review.Plan || len(s.Forecast) != 1 || s.Forecast[0].Model != "llama" {
		t.Errorf("got %+v, %+v", s.Plan, s.Forecast)
	}
}

// The targets of a plan are shown until twice its interval has passed.
func TestSnapshotShowsAppliedPlanTargets(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	review := &telemetry.Review{From: now, Until: now.Add(time.Hour), Targets: []telemetry.PlannedCapacity{{Model: "llama", Region: "local/us", Count: 3}}}
	for age, want := range map[time.Duration]int{0: 1, time.Hour: 1, 2 * time.Hour: 1, 2*time.Hour + time.Second: 0} {
		a := api(&balancer{}, func(o *Options) {
			o.Review = func() *telemetry.Review { return review }
			o.Now = func() time.Time { return now.Add(age) }
		})
		if s := a.Snapshot(); len(s.Targets) != want || s.Targets == nil {
			t.Errorf("after %s: %+v, want %d", age, s.Targets, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string // part of the answer
	}{
		{"GET", "/healthz", "", 200, `"ok"`},
		{"GET", "/nothing", "", 404, "the admin API has no GET /nothing; docs/openapi-admin.yaml describes it. Clients use the address for clients, not this one"},
		{"POST", "/v1/snapshot", "", 404, "the admin API has no POST /v1/snapshot; docs/openapi-admin.yaml describes it"},
		{"GET", "/v1/service", "", 404, "without a service.yaml"},
		{"GET", "/v1/decisions/req/1", "", 200, `"request":"req/1"`},
		{"GET", "/v1/decisions", "", 200, `{"balancer":"lb-us-0","region":"local/us","recorded":1,"limit":4096,"since":"2023-11-14T22:13:20Z","remembered":1}`},
		{"GET", "/v1/requests", "", 200, `{"requests":[{"request":"r100",`},
		{"GET", "/v1/requests?limit=1", "", 200, `{"requests":[{"request":"r1",`},
		{"GET", "/v1/requests?limit=1000", "", 200, `{"requests":[{"request":"r1000",`},
		{"GET", "/v1/requests?limit=1001", "", 400, `limit must be a number from 1 to 1000, got \"1001\"`},
		{"GET", "/v1/requests?limit=0", "", 400, `got \"0\"`},
		{"GET", "/v1/requests?limit=ten", "", 400, `got \"ten\"`},
		{"GET", "/v1/requests?limit=99999999999999999999", "", 400, `got \"99999999999999999999\"`},
		{"GET", "/v1/decisions/req-2", "", 404, `no decision recorded for request \"req-2\"`},
		{"GET", "/v1/history?since=12", "", 200, `{"complete":false,"points":[]}`},
		{"GET", "/v1/history?since=yesterday", "", 400, `got \"yesterday\"`},
		{"GET", "/v1/history?since=-1", "", 400, `got \"-1\"`},
		{"GET", "/metrics", "", 200, ""},
		{"GET", "/debug/pprof/cmdline", "", 200, ""},
		{"GET", "/workers", "", 200, `"workers":[{"id":"us-0","url":"http://127.0.0.1:8201","model":"llama","epoch":4,"state":"READY","reason":"","outstanding":0}]`},
		{"GET", "/list_workers", "", 200, `{"urls":["http://127.0.0.1:8201"]}`},

		{"POST", "/workers", `{"id":"us-1","url":"http://127.0.0.1:8202","model":"llama","epoch":1}`, 201, `"id":"us-1"`},
		{"POST", "/workers", `{"url":"http://127.0.0.1:8202"}`, 201, `"id":"127.0.0.1:8202"`},
		{"POST", "/workers", `{"id":"us-0","url":"http://127.0.0.1:8201","model":"llama","epoch":4}`, 200, `"added":false`},
		{"POST", "/workers", `{"id":"us-0","url":"http://127.0.0.1:8201","model":"llama","epoch":3}`, 409, "older than the current one"},
		{"POST", "/workers", `{"id":"p","url":"https://203.0.113.9"}`, 201, ""},
		{"POST", "/workers", `{"id":"p","url":"http://gpu.internal:8000/prefix"}`, 201, ""},
		{"POST", "/workers", `{"id":"x"`, 400, "reading the replica"},
		{"POST", "/workers", `{"id":"x","ulr":"http://127.0.0.1:1"}`, 400, `unknown field \"ulr\"`},
		{"POST", "/workers", `{"url":"` + strings.Repeat("x", maxWorkerBody) + `"}`, 413, "at most 65536 bytes"},
		{"POST", "/workers", `{"id":"x"}`, 400, "url: is required"},
		{"POST", "/workers", `{"url":"ftp://127.0.0.1:1"}`, 400, `got \"ftp://127.0.0.1:1\"`},
		{"POST", "/workers", `{"url":"127.0.0.1:1"}`, 400, "url:"},
		{"POST", "/workers", `{"url":"http://"}`, 400, "must contain a host"},
		{"POST", "/workers", `{"url":"http://127.0.0.1:1/p?a=hunter2"}`, 400, `must be a base URL without query, such as \"http://127.0.0.1:1/p\"`},
		{"POST", "/workers", `{"url":"ftp://127.0.0.1:1#hunter2"}`, 400, `without query, such as \"ftp://127.0.0.1:1\"`},
		{"POST", "/workers", `{"url":"http://127.0.0.1:99999"}`, 400, `url: must have a port from 1 to 65535, got \"http://127.0.0.1:99999\"`},
		{"POST", "/workers", `{"url":"ftp://` + strings.Repeat("é", 60) + `"}`, 400, "got \\\"ftp://" + strings.Repeat("é", 47) + "\\\""},
		{"POST", "/workers", `{"url":"ftpx://` + strings.Repeat("é", 60) + `"}`, 400, "got \\\"ftpx://" + strings.Repeat("é", 46) + "\\\""},
		{"POST", "/workers", `{"url":"http://127.0.0.1:0"}`, 400, "must have a port from 1 to 65535"},
		{"POST", "/workers", `{"id":"last","url":"http://127.0.0.1:65535"}`, 201, `"id":"last"`},
		{"POST", "/workers", `{"url":"http://169.254.169.254/latest"}`, 400, "169.254.169.254 is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://[::ffff:169.254.169.254]"}`, 400, "169.254.169.254 is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://[fd00:ec2::254]"}`, 400, "is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://[64:ff9b::169.254.169.254]"}`, 400, "169.254.169.254 is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://[::169.254.169.254]:80"}`, 400, "169.254.169.254 is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://[64:ff9b::10.0.0.9]:80"}`, 201, ""},
		{"POST", "/workers", `{"url":"http://[::]:80"}`, 400, ":: is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://192.0.0.192"}`, 400, "is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://[fe80::1%25eth0]"}`, 400, "is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://0.0.0.0:80"}`, 400, "is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://metadata.google.internal"}`, 400, "169.254.169.254 is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://mixed.example"}`, 400, "fe80::1 is not allowed as a replica address"},
		{"POST", "/workers", `{"url":"http://nowhere.example"}`, 400, "no such host"},

		{"POST", "/add_worker?url=http://127.0.0.1:8202", "", 201, `"id":"127.0.0.1:8202"`},
		{"POST", "/add_worker?url=http://127.0.0.1:8201/", "", 200, `{"added":false,"id":"us-0"}`}, // attached with this URL
		{"POST", "/add_worker?url=http://192.168.1.9:8000", "", 201, ""},
		{"POST", "/add_worker?url=http://203.0.113.9", "", 400, "--allow-replicas"},
		{"POST", "/add_worker?url=http://198.51.100.7", "", 201, ""}, // allowed
		{"POST", "/add_worker?url=http://169.254.169.254", "", 400, "is not allowed as a replica address"},
		{"POST", "/add_worker", "", 400, "url: is required"},

		{"DELETE", "/workers/us-0", "", 200, `"removed":true`},
		{"DELETE", "/workers/us-0?epoch=4", "", 200, ""},
		{"DELETE", "/workers/us-0?epoch=3", "", 409, "older than the current one"},
		{"DELETE", "/workers/us-0?epoch=x", "", 400, `got \"x\"`},
		{"DELETE", "/workers/us-9", "", 404, `no replica with the ID \"us-9\"`},
		{"POST", "/remove_worker?url=http://127.0.0.1:8201/", "", 200, `"removed":true`},
		{"POST", "/remove_worker?url=http://127.0.0.1:9", "", 404, "no replica with the URL"},
		{"POST", "/workers/us-0/drain", "", 200, `"draining":true`},
		{"POST", "/workers/us-9/drain", "", 404, `\"us-9\"`},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			b := &balancer{replicas: []Replica{{
				ReplicaConfig: service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:8201", Model: "llama", Epoch: 4},
				State:         service.StateReady,
			}}}
			a := api(b, func(o *Options) { o.AllowCIDRs = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} })
			status, body := call(a, c.method, c.path, c.body)
			if status != c.status || !strings.Contains(body, c.want) {
				t.Errorf("got %d %s\nwant %d with %s", status, body, c.status, c.want)
			}
			var refusal struct{ Error *struct{ Message string } }
			if status >= 400 && (json.Unmarshal([]byte(body), &refusal) != nil || refusal.Error == nil || refusal.Error.Message == "") {
				t.Errorf("not an error of the API's form: %s", body)
			}
		})
	}
}

func TestURLWithPasswordIsNotEchoed(t *testing.T) {
	_, body := call(api(&balancer{}, nil), "POST", "/workers", `{"url":"http://me:hunter2@127.0.0.1:1"}`)
	if !strings.Contains(body, "must not contain a user or password") || strings.Contains(body, "hunter2") {
		t.Errorf("got %s", body)
	}
}

func TestAuthorization(t *testing.T) {
	token := func(o *Options) { o.Token = "s3cret" }
	for _, c := range []struct {
		name    string
		change  func(*Options)
		method  string
		path    string
		headers []string
		want    int
	}{
		{"this machine", nil, "GET", "/v1/snapshot", nil, 200},
		{"by name", nil, "GET", "/v1/snapshot", []string{"Host", "localhost:8101"}, 200},
		{"IPv6", nil, "GET", "/v1/snapshot", []string{"Host", "[::1]:8101"}, 200},
		{"a rebound name", nil, "GET", "/v1/snapshot", []string{"Host", "evil.example:8101"}, 403},
		{"another page", nil, "POST", "/add_worker?url=http://127.0.0.1:1", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"another origin", nil, "POST", "/add_worker?url=http://127.0.0.1:1", []string{"Origin", "http://evil.example"}, 403},
		{"no token", token, "GET", "/v1/snapshot", nil, 401},
		{"wrong token", token, "GET", "/v1/snapshot", []string{"Authorization", "Bearer s3cret2"}, 401},
		{"wrong scheme", token, "GET", "/v1/snapshot", []string{"Authorization", "Basic s3cret"}, 401},
		{"requests without the token", token, "GET", "/v1/requests", nil, 401},
		{"requests for a rebound name", nil, "GET", "/v1/requests", []string{"Host", "evil.example:8101"}, 403},
		{"right token", token, "GET", "/v1/snapshot", []string{"Authorization", "Bearer s3cret"}, 200},
		{"right token, any name", token, "GET", "/v1/snapshot", []string{"Authorization", "bearer s3cret", "Host", "lb.example"}, 200},
		{"health needs none", token, "GET", "/healthz", nil, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, body := call(api(&balancer{}, c.change), c.method, c.path, "", c.headers...); got != c.want {
				t.Errorf("got %d %s, want %d", got, body, c.want)
			}
		})
	}
}

func TestBeyondLoopback(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:80": false, "127.8.8.8:80": false, "[::1]:80": false, "localhost:80": false, "[::ffff:127.0.0.1]:80": false,
		":80": true, "0.0.0.0:80": true, "[::]:80": true, "10.0.0.1:80": true, "lb.example:80": true, "nonsense": true,
	} {
		if got := BeyondLoopback(listen); got != want {
			t.Errorf("%s: %v, want %v", listen, got, want)
		}
	}
}

func TestServiceAndHistory(t *testing.T) {
	b := &balancer{complete: true, points: []telemetry.Point{{Minute: 5, Balancer: "lb-us-0", Requests: 3}}}
	a := api(b, func(o *Options) { o.ServiceYAML = func() ([]byte, error) { return []byte("name: chat\n"), nil } })
	if status, body := call(a, "GET", "/v1/service", ""); status != 200 || body != "name: chat\n" {
		t.Errorf("got %d %q", status, body)
	}
	if status, body := call(a, "POST", "/add_worker?url=http://203.0.113.9", ""); status != 400 || !strings.Contains(body, "regions[].endpoints") || strings.Contains(body, "--allow-replicas") {
		t.Errorf("got %d %s, want the setting of service.yaml", status, body)
	}
	if status, body := call(a, "GET", "/v1/history", ""); status != 200 || !strings.Contains(body, `"complete":true,"points":[{"minute":5,`) {
		t.Errorf("got %d %s", status, body)
	}
	if want := int64(1_700_000_000/60 - 7*24*60); b.since != want {
		t.Errorf("asked since %d, want a week back: %d", b.since, want)
	}
	b.unstored = []telemetry.Point{{Minute: 6, Balancer: "lb-us-0", Requests: 1}}
	if status, body := call(a, "GET", "/v1/history?since=5&points=unstored", ""); status != 200 || !strings.Contains(body, `"points":[{"minute":6,`) || b.since != 5 {
		t.Errorf("got %d %s since %d", status, body, b.since)
	}
	b.broken = errors.New("disk on fire")
	a = api(b, func(o *Options) {
		o.ServiceYAML = func() ([]byte, error) { return nil, errors.New("permission denied") }
	})
	for _, path := range []string{"/v1/service", "/v1/history"} {
		if status, body := call(a, "GET", path, ""); status != 500 || strings.Contains(body, "permission") || strings.Contains(body, "fire") {
			t.Errorf("%s: got %d %s", path, status, body)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "skyserve_test_total"})
	reg.MustRegister(c)
	c.Add(7)
	if _, body := call(api(&balancer{}, func(o *Options) { o.Registry = reg }), "GET", "/metrics", ""); !strings.Contains(body, "skyserve_test_total 7") {
		t.Errorf("got %s", body)
	}
}

func TestEvents(t *testing.T) {
	b := &balancer{events: make(chan json.RawMessage, 2)}
	srv := httptest.NewServer(api(b, nil))
	defer srv.Close()
	b.events <- json.RawMessage(`{"request":"1"}`)
	b.events <- json.RawMessage(`{"request":"2"}`)
	close(b.events)
	res, err := http.Get(srv.URL + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %q", got)
	}
	var data []string
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			data = append(data, text)
		}
	}
	if want := []string{`{"request":"1"}`, `{"request":"2"}`}; !slices.Equal(data, want) {
		t.Errorf("got %q, want %q", data, want)
	}
}

func ptr[T any](v T) *T { return &v }

func TestSnapshotOfOwnRegion(t *testing.T) {
	b := &balancer{
		replicas: []Replica{
			{
				ReplicaConfig: service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:8201", Model: "llama", GPU: "L4", Region: "local/eu", Epoch: 6}, State: service.StateReady, Origin: "config",
				View: &core.ReplicaView{Reported: true, Outstanding: 5, Pending: policy.Known(0), Running: policy.Known(3), KV: policy.Known(0.5), OutstandingLimit: policy.Known(9), Age: 40 * time.Millisecond},
			},
			{
				ReplicaConfig: service.ReplicaConfig{ID: "us-1"}, State: service.StateStarting, Reason: "connection refused",
				View: &core.ReplicaView{}, HitRate: policy.Known(0.25),
			},
			{ReplicaConfig: service.ReplicaConfig{ID: "us-2"}, State: service.StateStarting, Reason: "no response yet"},
		},
		view: core.BalancerView{Counts: core.Counts{Queued: 4, ForwardedIn: 2, ForwardedOut: 3}, Models: []core.ModelView{{Model: "llama", Queued: 1, Deferred: 3, FirstTokens: 40, Late: 2}}},
		stats: proxy.TrafficStats{
			RequestsPerSecond: ptr(1.5), TrafficSeconds: 30, Keys: []telemetry.KeyTraffic{},
			Models:    map[string]telemetry.Traffic{"llama": {Outcomes: telemetry.Outcomes{Served: 7, Failed: 1}, Usage: telemetry.Usage{Requests: 7, PromptTokens: 700, CachedTokens: 64, OutputTokens: 70, PricedRequests: 7, Cost: 5000}}},
			ByReplica: map[string]proxy.ReplicaTrafficStats{"us-0": {OutputTokensPerSecond: ptr(20.0), PrefixHitRate: ptr(0.75), Continuation: proxy.ContinuationProven, Attachment: 7}},
		},
	}
	_, body := call(api(b, nil), "GET", "/v1/snapshot", "")
	want := `{"at":"2023-11-14T22:13:20Z","service":"chat","regions":[{"name":"local/us",` +
		`"balancers":[{"id":"lb-us-0","endpoint":"http://127.0.0.1:8001","admin":"http://127.0.0.1:8101","version":"","state":"READY","reason":"","unresponsive":false,"rtt_ms":null,"age_ms":0,"certificate":null}],` +
		`"replicas":[` +
		`{"id":"us-0","url":"http://127.0.0.1:8201","model":"llama","gpu":"L4","region":"local/eu","capacity":"","state":"READY","reason":"","origin":"config","pending":0,"running":3,"outstanding":5,"outstanding_limit":9,"sent":0,"failed":0,"attachment":7,"epoch":6,"pace":null,"kv":0.5,"prefix_hit_rate":0.75,"output_tokens_per_second":20,"age_ms":40,"continuation":"proven","donated":false,"unattached":false,"terminated":false,"start":null,"usd_per_hour":null,"version":"","ready_since":null,"gpus":null},` +
		`{"id":"us-1","url":"","model":"","gpu":"","region":"","capacity":"","state":"STARTING","reason":"connection refused","origin":"","pending":null,"running":null,"outstanding":0,"outstanding_limit":null,"sent":0,"failed":0,"attachment":0,"epoch":0,"pace":null,"kv":null,"prefix_hit_rate":0.25,"output_tokens_per_second":null,"age_ms":null,"continuation":"","donated":false,"unattached":false,"terminated":false,"start":null,"usd_per_hour":null,"version":"","ready_since":null,"gpus":null},` +
		`{"id":"us-2","url":"","model":"","gpu":"","region":"","capacity":"","state":"STARTING","reason":"no response yet","origin":"","pending":null,"running":null,"outstanding":0,"outstanding_limit":null,"sent":0,"failed":0,"attachment":0,"epoch":0,"pace":null,"kv":null,"prefix_hit_rate":null,"output_tokens_per_second":null,"age_ms":null,"continuation":"","donated":false,"unattached":false,"terminated":false,"start":null,"usd_per_hour":null,"version":"","ready_since":null,"gpus":null}],` +
		`"queued":4,"models":[{"model":"llama","queued":1,"deferred":3,"first_tokens":40,"slo_misses":2,"idle_ms":0,` +
		`"traffic":{"seconds":30,"outcomes":{"served":7,"limited":0,"failed":1,"retries":0},"usage":{"requests":7,"prompt_tokens":700,"cached_tokens":64,"output_tokens":70,"priced_requests":7,"cost_nano_usd":5000},"ttft_ms":null,"e2e_ms":null},"cold":false,"late":2}],` +
		`"keys":[],"requests_per_second":1.5,"output_tokens_per_second":null,"prefix_hit_rate":null,"ttft_ms":null,"queue_oldest_ms":null,"outcomes":{"served":0,"limited":0,"failed":0,"retries":0},"forwarded_in":2,"forwarded_out":3,"forwarded_to":[]}],` +
		`"forecast":[],"donations":[],"plan":null,"targets":[],"prices":[],"strategy":"","events":[],"launches":null,"alerts":[],"controller":null,"store":null,"balancer_launches":null,"batches":[]}`
	if got := strings.TrimSpace(body); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestBalancerWithoutReadyReplica(t *testing.T) {
	b := &balancer{}
	if got := api(b, nil).Region().Balancers[0]; got.State != "STARTING" || got.Reason != "no attached replicas" {
		t.Errorf("got %+v", got)
	}
	b.replicas = []Replica{{State: service.StateNotReady}, {State: service.StateDraining}}
	for n, want := range map[int]string{1: "none of 1 replica is ready", 2: "none of 2 replicas is ready"} {
		b := &balancer{replicas: b.replicas[:n]}
		if got := api(b, nil).Region().Balancers[0]; got.State != "STARTING" || got.Reason != want {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
}

// If a certificate stays in use because its files are invalid, a working balancer shows a reason;
// its peers show it too.
func TestBrokenCertificateIsShown(t *testing.T) {
	ends := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	c := &telemetry.Certificate{ExpiresAt: &ends}
	b := &balancer{replicas: []Replica{{State: service.StateReady}}}
	a := api(b, func(o *Options) { o.Certificate = func() *telemetry.Certificate { return c } })
	if got := a.Region().Balancers[0]; got.State != "READY" || got.Reason != "" || got.Certificate != c {
		t.Errorf("got %+v", got)
	}
	c.Problem = "no PEM block"
	own := a.Region()
	const want = "certificate cannot be renewed, the current one expires 2031-02-03: no PEM block"
	if got := own.Balancers[0]; got.State != "READY" || got.Reason != want {
		t.Errorf("got %+v", got)
	}
	teller := reportingPeer("lb-us-0", "local/us")
	teller.Region = &own
	seen := api(&balancer{peers: []peer.Health{teller}}, func(o *Options) { o.Self.ID = "lb-eu-0" }).Snapshot()
	if got := seen.Balancer("lb-us-0"); got == nil || got.Reason != want || got.Certificate.Problem != c.Problem {
		t.Errorf("a peer shows %+v", got)
	}
}

// A balancer without a certificate serves no clients, regardless of its replicas.
func TestBalancerWaitingForCertificate(t *testing.T) {
	b := &balancer{replicas: []Replica{{State: service.StateReady}}}
	a := api(b, func(o *Options) {
		o.Certificate = func() *telemetry.Certificate { return &telemetry.Certificate{Waiting: "no record may be written"} }
	})
	if got := a.Region().Balancers[0]; got.State != "STARTING" || got.Reason != "waiting for certificate: no record may be written" {
		t.Errorf("got %+v", got)
	}
}

// /readyz includes the alerts, which do not affect readiness.
func TestReadyzIncludesAlerts(t *testing.T) {
	for state, want := range map[service.ReplicaState]int{service.StateReady: 200, service.StateNotReady: 503} {
		a := api(&balancer{replicas: []Replica{{State: state}}}, func(o *Options) {
			o.Alerts = func() []telemetry.Alert {
				return []telemetry.Alert{{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertCertificate, Object: "lb-us-0", Message: "ends soon"}}
			}
		})
		if status, body := call(a, http.MethodGet, "/readyz", ""); status != want || !strings.Contains(body, `"message":"ends soon"`) {
			t.Errorf("%s: %d %s", state, status, body)
		}
	}
}

// Every balancer shows the alerts of all balancers and of the controller: each once, the most
// severe first.
func TestAlertsOfAllBalancers(t *testing.T) {
	alert := func(severity telemetry.Severity, kind, object string) telemetry.Alert {
		return telemetry.Alert{Severity: severity, Kind: kind, Object: object, Message: "is so"}
	}
	store := alert(telemetry.SeverityWarning, telemetry.AlertStore, "store")
	teller := reportingPeer("lb-us-0", "local/us")
	own := api(&balancer{}, func(o *Options) {
		o.Alerts = func() []telemetry.Alert {
			return []telemetry.Alert{store, alert(telemetry.SeverityWarning, telemetry.AlertCertificate, "lb-us-0")}
		}
	}).Region()
	teller.Region = &own
	s := api(&balancer{peers: []peer.Health{teller}}, func(o *Options) {
		o.Self.ID, o.Self.Region = "lb-eu-0", "local/eu"
		o.Alerts = func() []telemetry.Alert { return []telemetry.Alert{store} }
		o.ServiceAlerts = func() []telemetry.Alert {
			return []telemetry.Alert{alert(telemetry.SeverityCritical, telemetry.AlertCertificate, "controller")}
		}
	}).Snapshot()
	var got []string
	for _, a := range s.Alerts {
		got = append(got, a.Line())
	}
	want := "critical: certificate controller: is so\nwarning: certificate lb-us-0: is so\nwarning: store: is so"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if b := s.Balancer("lb-us-0"); b == nil || b.Alerts != nil {
		t.Errorf("they are listed twice: %+v", b)
	}
}

func TestEndpointOfUnspecifiedAddress(t *testing.T) {
	a := api(&balancer{}, func(o *Options) {
		o.Self.Listen, o.Self.Admin = ":8000", "[::]:8100"
		o.Self.Balancer.TLS = &service.TLS{Cert: "c", Key: "k"}
	})
	if got := a.Region().Balancers[0]; got.Endpoint != "https://127.0.0.1:8000" || got.Admin != "http://127.0.0.1:8100" {
		t.Errorf("got %+v", got)
	}
}

// reportingPeer returns a peer that has reported its region.
func reportingPeer(id string, region service.Region, replicas ...string) peer.Health {
	r := &telemetry.RegionSnapshot{
		Name: region, Balancers: []telemetry.BalancerSnapshot{{ID: id, State: "READY"}},
		Queued: 2, RequestsPerSecond: ptr(3.0), PrefixHitRate: ptr(0.5), ForwardedIn: 1, ForwardedOut: 1,
		TTFT: &telemetry.Percentiles{Mean: 100, P50: 90, Max: 400},
	}
	for _, rep := range replicas {
		r.Replicas = append(r.Replicas, telemetry.ReplicaSnapshot{ID: rep, State: service.StateReady, Pending: ptr(1), AgeMillis: ptr(int64(50))})
	}
	return peer.Health{
		Peer:   service.PeerConfig{ID: id, Region: region, URL: "http://" + id, Admin: "http://admin-" + id},
		Region: r, RegionAge: 300 * time.Millisecond, Reported: true, Silence: 80 * time.Millisecond, RTT: 110 * time.Millisecond,
	}
}

func TestSnapshotOfPeers(t *testing.T) {
	silent := reportingPeer("lb-eu-0", "local/eu", "eu-0", "eu-1")
	silent.Silence, silent.Reason = 5*time.Second, "connection refused"
	unheard := peer.Health{Peer: service.PeerConfig{ID: "lb-sa-0", Region: "local/sa"}, Silence: 2 * time.Second}
	b := &balancer{
		replicas: []Replica{{ReplicaConfig: service.ReplicaConfig{ID: "eu-0"}, State: service.StateReady, Reason: "adopted from local/eu"}},
		peers:    []peer.Health{reportingPeer("lb-asia-0", "local/asia", "asia-0"), silent, unheard},
	}
	s := api(b, nil).Snapshot()
	var names []service.Region
	for _, r := range s.Regions {
		names = append(names, r.Name)
	}
	if want := []service.Region{"local/asia", "local/eu", "local/sa", "local/us"}; !slices.Equal(names, want) {
		t.Fatalf("regions %v, want %v", names, want)
	}
	asia, eu, sa := s.Regions[0], s.Regions[1], s.Regions[2]
	if got := asia.Balancers[0]; got.State != "READY" || got.AgeMillis != 300 || *got.RTTMillis != 110 || got.Endpoint != "http://lb-asia-0" || got.Admin != "http://admin-lb-asia-0" {
		t.Errorf("asia's balancer: %+v", got)
	}
	if got := asia.Replicas[0]; *got.AgeMillis != 350 || *got.Pending != 1 || asia.Queued != 2 {
		t.Errorf("asia's replica: %+v", got)
	}
	if got := eu.Balancers[0]; got.State != "UNREACHABLE" || got.Reason != "no heartbeat for 5s: connection refused" {
		t.Errorf("eu's balancer: %+v", got)
	}
	if len(eu.Replicas) != 1 || eu.Replicas[0].ID != "eu-1" { // eu-0 is shown at its current balancer
		t.Fatalf("eu's replicas: %+v", eu.Replicas)
	}
	if got := eu.Replicas[0]; got.State != service.StateNotReady || got.Pending != nil || !strings.Contains(got.Reason, "lb-eu-0 is unreachable") {
		t.Errorf("eu's replica: %+v", got)
	}
	if eu.RequestsPerSecond != nil || eu.TTFT != nil || eu.Queued != 0 {
		t.Errorf("a silent balancer's figures count: %+v", eu)
	}
	if got := sa.Balancers[0]; got.State != "UNREACHABLE" || got.RTTMillis != nil || len(sa.Replicas) != 0 {
		t.Errorf("sa: %+v", sa)
	}
	if *silent.Region.Replicas[0].AgeMillis != 50 {
		t.Error("the peer's own snapshot was changed")
	}
	// Without the replicas of other balancers that are reachable.
	var own []string
	for _, r := range api(b, nil).snapshot(true).Regions {
		for _, replica := range r.Replicas {
			own = append(own, replica.ID)
		}
	}
	if want := []string{"eu-1", "eu-0"}; !slices.Equal(own, want) {
		t.Errorf("own replicas %q, want %q", own, want)
	}
}

// A balancer without a ready replica is ready if a request can start one, and it has no replica of
// another model.
func TestBalancerOfAColdModelIsReady(t *testing.T) {
	starting := func(model string) Replica {
		return Replica{ReplicaConfig: service.ReplicaConfig{ID: "us-0", Model: model}, State: service.StateStarting}
	}
	for name, c := range map[string]struct {
		replicas []Replica
		cold     bool
		state    service.ReplicaState
	}{
		"no replica":                  {nil, true, "READY"},
		"its replica starts":          {[]Replica{starting("m")}, true, "READY"},
		"another model's starts":      {[]Replica{starting("m"), starting("n")}, true, "STARTING"},
		"the model has a replica far": {nil, false, "STARTING"},
	} {
		b := &balancer{replicas: c.replicas, view: core.BalancerView{Models: []core.ModelView{{Model: "m", Cold: c.cold}, {Model: "n"}}}}
		got := api(b, nil).Region().Balancers[0]
		if got.State != c.state || c.state == "READY" && got.Reason != "no ready replica, models start at their first request" {
			t.Errorf("%s: %s %q", name, got.State, got.Reason)
		}
	}
}

// The counts of a model are known only if all its live balancers report them.
func TestModelsOfARegion(t *testing.T) {
	own := []core.ModelView{{Model: "llama", Queued: 2, Deferred: 5, FirstTokens: 70, Late: 4, Idle: 3 * time.Second}, {Model: "small", Idle: time.Minute, Cold: true}}
	idle := func(ms int64) *int64 { return &ms }
	peers := func(models []telemetry.ModelSnapshot, silence time.Duration) []peer.Health {
		p := reportingPeer("lb-us-1", "local/us")
		p.Region.Models, p.Silence = models, silence
		return []peer.Health{p}
	}
	alone := []telemetry.ModelSnapshot{{Model: "llama", Queued: 2, Deferred: 5, FirstTokens: 70, SLOMisses: 4, IdleMillis: idle(3000)}, {Model: "small", IdleMillis: idle(60_000), Cold: true}}
	for name, c := range map[string]struct {
		peers []peer.Health
		want  []telemetry.ModelSnapshot
	}{
		"one balancer": {nil, alone},
		"two add up": {
			peers([]telemetry.ModelSnapshot{{Model: "big", Queued: 1}, {Model: "llama", Queued: 3, Deferred: 1, FirstTokens: 9, SLOMisses: 1, IdleMillis: idle(2000)}, {Model: "small", IdleMillis: idle(90_000)}}, 0),
			[]telemetry.ModelSnapshot{{Model: "big", Queued: 1}, {Model: "llama", Queued: 5, Deferred: 6, FirstTokens: 79, SLOMisses: 5, IdleMillis: idle(2000)}, {Model: "small", IdleMillis: idle(60_000)}},
		},
		"an older one does not tell": {peers(nil, 0), nil},
		"a lost one holds nothing":   {peers([]telemetry.ModelSnapshot{{Model: "llama", Queued: 9}}, time.Minute), alone},
	} {
		got := api(&balancer{view: core.BalancerView{Models: own}, peers: c.peers}, nil).Snapshot().Regions[0].Models
		if !reflect.DeepEqual(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	otherRegion := api(&balancer{view: core.BalancerView{Models: own}, peers: peers(alone, time.Minute)}, func(o *Options) { o.Self.Region = "local/eu" })
	if got := otherRegion.Snapshot().Regions[1]; got.Name != "local/us" || got.Models != nil {
		t.Errorf("nobody lives there: %+v", got)
	}
}

// The traffic of a model and of a key is summed over the balancers of a region. A model without requests has
// none, which is known.
func TestTrafficOfARegion(t *testing.T) {
	of := func(served, failed int64, p50, seconds float64) telemetry.Traffic {
		return telemetry.Traffic{Seconds: seconds, Outcomes: telemetry.Outcomes{Served: served, Failed: failed}, TTFT: &telemetry.Percentiles{P50: p50, Max: 2 * p50}}
	}
	key := func(tenant, name string, tr telemetry.Traffic) telemetry.KeyTraffic {
		return telemetry.KeyTraffic{Key: name, Tenant: tenant, Traffic: tr}
	}
	own, theirs := of(3, 1, 100, 60), of(12, 0, 200, 30)
	p := reportingPeer("lb-us-1", "local/us")
	p.Region.Models = []telemetry.ModelSnapshot{{Model: "llama", Traffic: &theirs}}
	p.Region.Keys = []telemetry.KeyTraffic{key("acme", "a", theirs), key("acme", "b", theirs)}
	b := &balancer{
		view: core.BalancerView{Models: []core.ModelView{{Model: "llama"}, {Model: "small"}}}, peers: []peer.Health{p},
		stats: proxy.TrafficStats{TrafficSeconds: 60, Models: map[string]telemetry.Traffic{"llama": own}, Keys: []telemetry.KeyTraffic{key("acme", "a", own), key("", "z", own)}},
	}
	got := api(b, nil).Snapshot().Regions[0]
	sum := of(15, 1, 175, 60) // 4 requests at 100 ms, 12 at 200 ms
	sum.TTFT.Max = 400
	if tr := got.Models[0].Traffic; !reflect.DeepEqual(*tr, sum) {
		t.Errorf("llama: got %+v, TTFT %+v", tr, tr.TTFT)
	}
	if tr := got.Models[1].Traffic; tr == nil || *tr != (telemetry.Traffic{Seconds: 60}) {
		t.Errorf("small: got %+v", tr)
	}
	want := []telemetry.KeyTraffic{key("", "z", own), key("acme", "a", sum), key("acme", "b", theirs)}
	if !reflect.DeepEqual(got.Keys, want) {
		t.Errorf("keys: got %+v, want %+v", got.Keys, want)
	}
	p.Region.Keys = nil
	if got := api(b, nil).Snapshot().Regions[0].Keys; got != nil {
		t.Errorf("an older balancer does not report them: got %+v", got)
	}
}

// Forwards are listed by region, summed over a region's balancers: those that this one forwarded,
// and those that the other balancer of its region reports.
func TestSnapshotIncludesForwards(t *testing.T) {
	sibling := reportingPeer("lb-us-1", "local/us", "us-1")
	sibling.Region.ForwardedTo = []telemetry.Flow{{Region: "local/eu", Requests: 4}}
	b := &balancer{
		view: core.BalancerView{Peers: []core.PeerView{
			{ID: "lb-eu-0", Forwarded: 5}, {ID: "lb-eu-1", Forwarded: 2}, {ID: "lb-asia-0"}, {ID: "gone", Forwarded: 9}, {ID: "lb-us-1", Forwarded: 1},
		}},
		peers: []peer.Health{reportingPeer("lb-eu-0", "local/eu"), reportingPeer("lb-eu-1", "local/eu"), reportingPeer("lb-asia-0", "local/asia"), sibling},
	}
	s := api(b, nil).Snapshot()
	for _, r := range s.Regions {
		want := map[service.Region][]telemetry.Flow{"local/us": {{Region: "local/eu", Requests: 11}, {Region: "local/us", Requests: 1}}}[r.Name]
		if !slices.Equal(r.ForwardedTo, want) || r.ForwardedTo == nil {
			t.Errorf("%s forwarded to %v, want %v", r.Name, r.ForwardedTo, want)
		}
	}
}

// A balancer that responds again still has the replicas that another one has adopted. Each is listed once, at the newer
// assignment. Replicas without an assignment are those of standalone balancers.
func TestReplicaOfTwoBalancersIsListedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		own, peer uint64
		us, eu    int
	}{
		"the peer has adopted it":     {3, 4, 0, 1},
		"the balancer has adopted it": {4, 3, 1, 0},
		"the balancer has restarted":  {0, 4, 0, 1},
		"no controller":               {0, 0, 1, 1},
	} {
		adopted := reportingPeer("lb-eu-0", "local/eu", "us-0")
		adopted.Region.Replicas[0].Epoch = c.peer
		b := &balancer{
			replicas: []Replica{{ReplicaConfig: service.ReplicaConfig{ID: "us-0", Epoch: c.own}, State: service.StateReady}},
			peers:    []peer.Health{adopted},
		}
		s := api(b, nil).Snapshot()
		if eu, us := len(s.Regions[0].Replicas), len(s.Regions[1].Replicas); eu != c.eu || us != c.us {
			t.Errorf("%s: %d in us and %d in eu, want %d and %d", name, us, eu, c.us, c.eu)
		}
		if len(adopted.Region.Replicas) != 1 {
			t.Errorf("%s: the peer's own snapshot was changed", name)
		}
	}
}

func TestSeveralBalancersOfARegion(t *testing.T) {
	b := &balancer{
		replicas: []Replica{{ReplicaConfig: service.ReplicaConfig{ID: "us-0"}, State: service.StateReady}},
		view:     core.BalancerView{Counts: core.Counts{Queued: 1, ForwardedOut: 5}},
		stats:    proxy.TrafficStats{RequestsPerSecond: ptr(1.0), PrefixHitRate: ptr(0.9), TTFT: &telemetry.Percentiles{Mean: 200, P50: 190, Max: 300}},
		peers:    []peer.Health{reportingPeer("lb-us-1", "local/us", "us-1")},
	}
	s := api(b, nil).Snapshot()
	if len(s.Regions) != 1 {
		t.Fatalf("%d regions, want one", len(s.Regions))
	}
	r := s.Regions[0]
	if len(r.Balancers) != 2 || len(r.Replicas) != 2 || r.Queued != 3 || r.ForwardedOut != 6 || *r.RequestsPerSecond != 4 {
		t.Errorf("got %+v", r)
	}
	if got := *r.PrefixHitRate; got < 0.599 || got > 0.601 {
		t.Errorf("hit rate %v, want (0.9 + 3 x 0.5) / 4", got)
	}
	if r.TTFT.Mean != 125 || r.TTFT.P50 != 115 || r.TTFT.Max != 400 {
		t.Errorf("TTFT %+v", r.TTFT)
	}
	if got := r.Balancers[1]; got.RTTMillis == nil || r.Balancers[0].RTTMillis != nil {
		t.Errorf("round trips: %+v", r.Balancers)
	}
}
