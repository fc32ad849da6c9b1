package lbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// filed is a balancer that runs from a file.
type filed struct {
	*node
	t    *testing.T
	cfg  service.BalancerConfig
	file string
}

// startFiled runs a balancer from a file.
func startFiled(t *testing.T, cfg service.BalancerConfig, opts Options) *filed {
	t.Helper()
	cfg.Service, cfg.Listen, cfg.Admin = "chat", "127.0.0.1:0", "127.0.0.1:0"
	f := &filed{t: t, cfg: cfg, file: filepath.Join(t.TempDir(), "lb.yaml")}
	f.change(func(*service.BalancerConfig) {})
	opts.ReadConfig = func() (service.BalancerConfig, error) { return ReadConfig(f.file) }
	f.node = start(t, cfg, opts)
	return f
}

// change changes the file.
func (f *filed) change(change func(*service.BalancerConfig)) {
	f.t.Helper()
	change(&f.cfg)
	text, err := yaml.Marshal(f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	write(f.t, f.file, string(text))
}

// reload makes the balancer reload its file, which must be accepted.
func (f *filed) reload() *telemetry.Reload {
	f.t.Helper()
	done, err := f.admin.Reload(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return done
}

// refused makes the balancer reload its file, which must be rejected.
func (f *filed) refused() string {
	f.t.Helper()
	done, err := f.admin.Reload(context.Background())
	var status *telemetry.StatusError
	if !errors.As(err, &status) || status.Status != http.StatusBadRequest {
		f.t.Fatalf("reload did %+v, %v; want a refusal", done, err)
	}
	return status.Message
}

// metric returns the line of a metric.
func (n *node) metric(t *testing.T, hc *http.Client, name string) string {
	t.Helper()
	res, err := hc.Get(n.adminURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// wordByWord is a replica that streams a response of some words; each word waits for step, if it is
// not nil.
func wordByWord(t *testing.T, model string, step <-chan struct{}) *engine {
	t.Helper()
	e := &engine{model: model}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n")
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		e.set(func(e *engine) { e.served++ })
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 4 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"w%d \"}}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			if step != nil {
				select {
				case <-step:
				case <-r.Context().Done():
					return
				}
			}
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	e.Server = httptest.NewServer(rejectChecks(mux))
	t.Cleanup(e.Close)
	return e
}

// stream requests a stream and returns the error of the response; empty if it was complete.
func stream(hc *http.Client, public, prompt string) string {
	body := fmt.Sprintf(`{"model":"llama","stream":true,"messages":[{"role":"user","content":%q}]}`, prompt)
	res, err := hc.Post(public+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err.Error()
	case res.StatusCode != http.StatusOK:
		return fmt.Sprintf("%d %s", res.StatusCode, text)
	case strings.Count(string(text), "data:") != 5 || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")):
		return fmt.Sprintf("broken off: %q", text)
	}
	return ""
}

// clients request streams until stop is called, which returns the number of complete streams and
// the errors.
func clients(t *testing.T, n int, publics ...string) (served *atomic.Int64, stop func() []string) {
	hc := client(t)
	hc.Transport.(*http.Transport).MaxIdleConnsPerHost = n
	served = new(atomic.Int64)
	done := make(chan struct{})
	var (
		mu    sync.Mutex
		wrong []string
		wg    sync.WaitGroup
	)
	for i := range n {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				prompt := strings.Repeat(fmt.Sprintf("user %d says something; ", random.IntN(8)), 1+random.IntN(20))
				if problem := stream(hc, publics[i%len(publics)], prompt); problem != "" {
					mu.Lock()
					wrong = append(wrong, problem)
					mu.Unlock()
				} else {
					served.Add(1)
				}
			}
		})
	}
	return served, func() []string { close(done); wg.Wait(); return wrong }
}

// Two regions under load, whose policy changes five times: no request fails and no stream is
// interrupted.
func TestPolicyChangesUnderLoad(t *testing.T) {
	there := startFiled(t, config("lb-eu-0", "local/eu", service.ReplicaConfig{ID: "eu-0", URL: wordByWord(t, "llama", nil).URL, Model: "llama"}), Options{})
	cfg := config("lb-us-0", "local/us",
		service.ReplicaConfig{ID: "us-0", URL: wordByWord(t, "llama", nil).URL, Model: "llama"},
		service.ReplicaConfig{ID: "us-1", URL: wordByWord(t, "llama", nil).URL, Model: "llama"})
	cfg.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: there.public}}
	here := startFiled(t, cfg, Options{})
	for _, f := range []*filed{here, there} {
		testkit.Eventually(t, "ready", func() bool { return status(t, client(t), f.public+"/readyz") == http.StatusOK })
	}
	served, stop := clients(t, 12, here.public, there.public)
	for i, policy := range []string{"least-load", "cost", "bf-io", "round-robin", "skylb"} {
		before := served.Load()
		testkit.Eventually(t, "more is served", func() bool { return served.Load() >= before+30 })
		for _, f := range []*filed{here, there} {
			f.change(func(c *service.BalancerConfig) {
				c.Balancer.Policy, c.Balancer.Order = policy, []string{"edf", "pf"}[i%2]
				c.Balancer.Push = []string{"outstanding:2", "pending"}[i%2]
			})
			if done := f.reload(); !slices.ContainsFunc(done.Changed, func(s string) bool { return strings.HasPrefix(s, "balancer.policy: "+policy) }) || len(done.Restart) > 0 {
				t.Errorf("%s: reload did %+v", policy, done)
			}
		}
	}
	before := served.Load()
	testkit.Eventually(t, "more is served", func() bool { return served.Load() >= before+30 })
	if wrong := stop(); len(wrong) > 0 {
		t.Errorf("%d requests failed beside %d served, the first: %s", len(wrong), served.Load(), wrong[0])
	}
}

func TestReloadListsRestartFields(t *testing.T) {
	reported := make(chan string, 4)
	f := startFiled(t, config("lb-us-0", "local/us"), Options{OnReload: func(revision string) { reported <- revision }})
	if done := f.reload(); len(done.Changed)+len(done.Restart)+len(done.NotApplied) != 0 {
		t.Errorf("the same file again did %+v", done)
	}
	<-reported
	f.change(func(c *service.BalancerConfig) {
		c.Listen, c.Admin, c.StoreURL, c.PeerToken, c.Record = "127.0.0.1:1", "127.0.0.1:2", "nats://127.0.0.1:3", "other", "r"
		c.Balancer.TLS, c.Balancer.PeerQueueLimit, c.Revision = &service.TLS{Cert: "c", Key: "k"}, 3, "rev-1"
	})
	done := f.reload()
	want := []string{"listen", "admin", "balancer.tls", "store_url", "peer_token", "record"}
	if !slices.Equal(done.Restart, want) || !slices.Equal(done.Changed, []string{"balancer.peer_queue_limit: 3, was 10"}) || done.Revision != "" || len(reported) != 0 {
		t.Errorf("reload did %+v, want the restart for %v", done, want)
	}
	if got := status(t, client(t), f.public+"/healthz"); got != http.StatusOK {
		t.Errorf("it does not listen where it did: %d", got)
	}
	f.change(func(c *service.BalancerConfig) {
		*c = config("lb-us-0", "local/us")
		c.Service, c.Listen, c.Admin, c.Balancer.PeerQueueLimit, c.Revision = "chat", "127.0.0.1:0", "127.0.0.1:0", 4, "rev-2"
	})
	if done := f.reload(); done.Revision != "rev-2" || <-reported != "rev-2" {
		t.Errorf("reload did %+v", done)
	}
}

func TestInvalidConfigurationsChangeNothing(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	write(t, keys, "key-one\n")
	cfg := config("lb-us-0", "local/us")
	cfg.Balancer.Auth = &service.Auth{KeysFrom: "file:" + keys}
	f := startFiled(t, cfg, Options{})
	hc := client(t)
	good, err := os.ReadFile(f.file)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string // of the file; empty = no file
		want []string
	}{
		"missing file":            {"", []string{"no such file"}},
		"malformed":               {"id: [", []string{"lb.yaml:1"}},
		"unknown key":             {string(good) + "polcy: cost\n", []string{`unknown key "polcy"`}},
		"replica, model and keys": {string(good) + "replicas: [{url: 'ftp://x'}]\nmodels: [{aliases: [a]}]\n", []string{"replicas[0].url: must be http://HOST:PORT", "models[0].name: is required"}},
		"policy and push":         {strings.Replace(string(good), "balancer:\n", "balancer:\n  policy: best\n  push: hard\n  tau: -1\n", 1), []string{"balancer.policy: ", `balancer.push: unknown push mode "hard"`, "balancer.peer_queue_limit: must be at least 0, got -1"}},
		"public by mistake":       {strings.Replace(string(good), "127.0.0.1:0", "0.0.0.0:0", 2), []string{"no admin token is set"}},
	} {
		if write(t, f.file, c.text); c.text == "" {
			_ = os.Remove(f.file)
		}
		got := f.refused()
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %q, want %q in it", name, got, want)
			}
		}
	}
	write(t, f.file, string(good))
	write(t, keys, "# none yet\n")
	if got := f.refused(); !strings.Contains(got, "balancer.auth.keys_from: ") || !strings.Contains(got, "contains no key") {
		t.Errorf("a file without keys: %q", got)
	}
	if err := os.Remove(keys); err != nil {
		t.Fatal(err)
	}
	if got := f.refused(); !strings.Contains(got, "balancer.auth.keys_from: ") || strings.Contains(got, "key-one") {
		t.Errorf("no file of keys: %q", got)
	}
	if got := ask(t, hc, f.public, "llama", "Authorization", "Bearer key-one"); got.status == http.StatusUnauthorized {
		t.Errorf("the old key is rejected: %+v", got)
	}
	if got := ask(t, hc, f.public, "llama"); got.status != http.StatusUnauthorized {
		t.Errorf("without a key: %+v", got)
	}
	if got := f.metric(t, hc, `skyserve_reloads_total{result="refused"}`); got != `skyserve_reloads_total{result="refused"} 8` {
		t.Errorf("metric %q", got)
	}
	write(t, keys, "key-two\n")
	if done := f.reload(); !slices.Equal(done.Changed, []string{"balancer.auth: 1 key, 1 added, 1 removed"}) {
		t.Errorf("reload did %+v", done)
	}
	if got := ask(t, hc, f.public, "llama", "Authorization", "Bearer key-one"); got.status != http.StatusUnauthorized {
		t.Errorf("the old key is still accepted: %+v", got)
	}
}

// A balancer that was started with flags has no file: SIGHUP reloads its keys.
func TestHangupReloadsFiles(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	write(t, keys, "key-one\n")
	cfg := config("lb-us-0", "local/us")
	cfg.Balancer.Auth = &service.Auth{KeysFrom: "file:" + keys}
	hangups := make(chan os.Signal)
	n := start(t, cfg, Options{ReloadSignals: hangups})
	hc := client(t)
	write(t, keys, "key-two\n")
	hangups <- syscall.SIGHUP
	testkit.Eventually(t, "the new key is accepted", func() bool {
		return ask(t, hc, n.public, "llama", "Authorization", "Bearer key-two").status != http.StatusUnauthorized
	})
	if got := ask(t, hc, n.public, "llama", "Authorization", "Bearer key-one"); got.status != http.StatusUnauthorized {
		t.Errorf("the old key is still accepted: %+v", got)
	}
}

// Replicas and peers are changed by difference: a removed one finishes its stream, those that the
// controller assigned are not changed.
func TestReloadChangesReplicasAndPeers(t *testing.T) {
	step := make(chan struct{})
	old, other := wordByWord(t, "llama", step), wordByWord(t, "llama", nil)
	f := startFiled(t, config("lb-us-0", "local/us",
		service.ReplicaConfig{ID: "us-0", URL: old.URL, Model: "llama"},
		service.ReplicaConfig{ID: "us-9", URL: other.URL, Model: "llama"}), Options{})
	hc := client(t)
	if _, err := f.admin.AddWorker(context.Background(), service.ReplicaConfig{ID: "us-9", URL: other.URL, Model: "qwen", Epoch: 7}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "ready", func() bool { return f.worker(t, "us-0").State == service.StateReady })
	answered := make(chan string, 1)
	go func() { answered <- stream(hc, f.public, "hi") }()
	testkit.Eventually(t, "the stream has begun", func() bool { return old.count() == 1 })

	peer := startFiled(t, config("lb-eu-0", "local/eu"), Options{})
	f.change(func(c *service.BalancerConfig) {
		c.Replicas = []service.ReplicaConfig{{ID: "us-1", URL: other.URL, Model: "llama"}}
		c.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: peer.public}}
		c.Models = []service.BalancerModel{{Name: "llama", Aliases: []string{"small"}}}
	})
	done := f.reload()
	if want := []string{"models", "replicas: us-1 added", "peers: lb-eu-0 added", "replicas: us-0 removed"}; !slices.Equal(done.Changed, want) || !slices.Equal(done.NotApplied, []string{"us-9"}) {
		t.Errorf("reload did %+v, want %v", done, want)
	}
	if w := f.worker(t, "us-0"); w.State != service.StateDraining {
		t.Errorf("the removed replica is %+v, want it to drain", w)
	}
	testkit.Eventually(t, "the alias leads to the new replica", func() bool {
		return ask(t, hc, f.public, "small").header.Get("X-Skyserve-Replica") == "us-1"
	})
	testkit.Eventually(t, "the peer has reported", func() bool { return len(f.snapshot(t).Regions) == 2 })
	close(step)
	if problem := <-answered; problem != "" {
		t.Errorf("the stream of the removed replica: %s", problem)
	}
	testkit.Eventually(t, "it is removed", func() bool { return f.worker(t, "us-0").ID == "" })
	if w := f.worker(t, "us-9"); w.Epoch != 7 {
		t.Errorf("what the controller assigned: %+v", w)
	}

	off := false
	f.change(func(c *service.BalancerConfig) { c.Balancer.EjectAfter, c.Balancer.Continue = 9, &off })
	if done := f.reload(); !slices.Equal(done.Changed, []string{"balancer.eject_after: 9, was 5", "balancer.continue: false, was true"}) {
		t.Errorf("reload did %+v", done)
	}
	f.change(func(c *service.BalancerConfig) { c.Peers[0].EmulateRTT = 1 })
	if done := f.reload(); !slices.Equal(done.Changed, []string{"peers: lb-eu-0 changed"}) {
		t.Errorf("reload did %+v", done)
	}
	f.change(func(c *service.BalancerConfig) { c.Peers = nil })
	if done := f.reload(); !slices.Equal(done.Changed, []string{"peers: lb-eu-0 removed"}) || len(f.snapshot(t).Regions) != 1 {
		t.Errorf("reload did %+v", done)
	}
}

// A changed setting of a replica takes effect although the controller has assigned the replica to this balancer, and the
// assignment and an operator's drain remain. If the controller has assigned it at another URL, it is another replica.
func TestReloadChangesAssignedReplica(t *testing.T) {
	engine, other := wordByWord(t, "llama", nil), wordByWord(t, "llama", nil)
	replica := service.ReplicaConfig{ID: "us-0", URL: engine.URL, Model: "lama"}
	f := startFiled(t, config("lb-us-0", "local/us", replica), Options{})
	assign := func(url string, epoch uint64) {
		t.Helper()
		assigned := replica
		assigned.URL, assigned.Epoch = url, epoch
		if _, err := f.admin.AddWorker(t.Context(), assigned); err != nil {
			t.Fatal(err)
		}
	}
	assign(engine.URL, 7)
	testkit.Eventually(t, "its model is wrong", func() bool { return strings.Contains(f.worker(t, "us-0").Reason, "lama") })
	configure := func(change func(*service.ReplicaConfig)) {
		change(&replica)
		f.change(func(c *service.BalancerConfig) { c.Replicas = []service.ReplicaConfig{replica} })
	}
	configure(func(r *service.ReplicaConfig) { r.Model = "llama" })
	if done := f.reload(); !slices.Equal(done.Changed, []string{"replicas: us-0 changed"}) || len(done.NotApplied) > 0 {
		t.Errorf("reload did %+v", done)
	}
	testkit.Eventually(t, "ready", func() bool { return f.worker(t, "us-0").State == service.StateReady })
	if w := f.worker(t, "us-0"); w.Model != "llama" || w.Epoch != 7 {
		t.Errorf("got %+v", w)
	}

	if err := f.admin.DrainWorker(t.Context(), "us-0", ""); err != nil {
		t.Fatal(err)
	}
	configure(func(r *service.ReplicaConfig) { r.GPU = "L4" })
	f.reload()
	if w := f.worker(t, "us-0"); w.GPU != "L4" || w.State != service.StateDraining {
		t.Errorf("got %+v", w)
	}

	assign(other.URL, 8)
	configure(func(r *service.ReplicaConfig) { r.GPU = "H100" })
	if done := f.reload(); !slices.Equal(done.NotApplied, []string{"us-0"}) || f.worker(t, "us-0").URL != other.URL {
		t.Errorf("reload did %+v", done)
	}
}

// An address of the store that cannot be used is not reported as changed, and the next reload tries again.
func TestFailedStoreURLIsNotApplied(t *testing.T) {
	s, err := store.Connect(t.Context(), "nats://127.0.0.1:1", "", store.Lazy())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const was, bad, good = "tls://127.0.0.1:1", "tls://127.0.0.1 :1", "tls://127.0.0.1:2"
	for _, c := range []struct {
		to, configured string
		want           telemetry.Reload
	}{
		{bad, was, telemetry.Reload{Restart: []string{"store_url"}}},
		{good, good, telemetry.Reload{Changed: []string{"store_url"}}},
	} {
		b := &balancer{store: s, log: slog.New(slog.DiscardHandler), configured: service.BalancerConfig{StoreURL: c.to}}
		var done telemetry.Reload
		b.applyStoreURL(was, &done)
		if !reflect.DeepEqual(done, c.want) || b.configured.StoreURL != c.configured {
			t.Errorf("%s: %+v, configured is %s", c.to, done, b.configured.StoreURL)
		}
	}
}

// The cache figures that tenants receive follow the file, at the start and after a reload.
func TestTenantSettingsAreReloaded(t *testing.T) {
	t.Setenv("TEST_KEYS", "sk-a tenant=anna\nsk-b tenant=ben")
	e := newEngine(t, "m", "")
	f := startFiled(t, service.BalancerConfig{
		ID: "lb-us", Region: "local/us", Replicas: []service.ReplicaConfig{{ID: "us-0", URL: e.URL, Model: "m"}},
		Balancer: service.BalancerSpec{Policy: "skylb", Auth: &service.Auth{KeysFrom: "env:TEST_KEYS"}, ExposeCache: true},
	}, Options{})
	f.serves(t)
	hc, long := client(t), strings.Repeat("the system prompt of everybody ", 20)
	match := func(key string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.public+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"`+long+`"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.Header.Get("X-Skyserve-Prefix-Match")
	}
	if first, again, other := match("sk-a"), match("sk-a"), match("sk-b"); first != "0.000" || again < "0.9" || other != "0.000" {
		t.Errorf("exposed and apart: %q, then %q; the other tenant %q", first, again, other)
	}
	f.change(func(c *service.BalancerConfig) { c.Balancer.SharePrefixes = true })
	if done := f.reload(); !slices.Equal(done.Changed, []string{"balancer.share_prefixes: true, was false"}) || len(done.Restart) > 0 {
		t.Errorf("reload did %+v", done)
	}
	if first, other := match("sk-a"), match("sk-b"); first != "0.000" || other < "0.9" {
		t.Errorf("shared: %q, then %q for the other tenant", first, other)
	}
	f.change(func(c *service.BalancerConfig) { c.Balancer.ExposeCache = false })
	if done := f.reload(); !slices.Equal(done.Changed, []string{"balancer.expose_cache: false, was true"}) {
		t.Errorf("reload did %+v", done)
	}
	if got := match("sk-a"); got != "" {
		t.Errorf("not exposed: %q", got)
	}
}
