package lbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// origins returns the origin of each attached replica by URL.
func (n *node) origins(t *testing.T) map[string]string {
	t.Helper()
	workers, err := n.admin.Workers(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, w := range workers {
		all[w.URL] = w.Origin
	}
	return all
}

// discoveryAlert returns the alert about discovery; nil if there is none.
func (n *node) discoveryAlert(t *testing.T) *telemetry.Alert {
	for _, a := range n.snapshot(t).Alerts {
		if a.Kind == telemetry.AlertDiscovery {
			return &a
		}
	}
	return nil
}

// list replaces a file of replicas as careful programs do.
func list(t *testing.T, path string, lines ...string) {
	t.Helper()
	write(t, path+".new", strings.Join(lines, "\n")+"\n")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// Replicas are attached and removed as the file changes. A replica that is removed finishes its requests. A
// broken file changes nothing and raises an alert with the line.
func TestReplicasFile(t *testing.T) {
	t.Parallel()
	step := make(chan struct{})
	first, second := wordByWord(t, "llama", step), newEngine(t, "llama", "")
	path := filepath.Join(t.TempDir(), "replicas")
	list(t, path, "# engines", first.URL)
	cfg := config("lb-us-0", "local/us")
	cfg.ReplicasFile = path
	n := start(t, cfg, Options{})
	ready(t, n)
	origin := "file " + path
	if got := n.origins(t); len(got) != 1 || got[first.URL] != origin {
		t.Fatalf("attached %v", got)
	}
	if r := n.snapshot(t).Regions[0].Replicas[0]; r.Origin != origin {
		t.Errorf("the snapshot shows %+v", r)
	}
	hc := client(t)
	answer := make(chan string, 1)
	go func() { answer <- stream(hc, n.public, "hi") }()
	testkit.Eventually(t, "the request is at the engine", func() bool { return first.count() == 1 })

	list(t, path, second.URL)
	testkit.Eventually(t, "the second replaces the first", func() bool {
		return n.worker(t, hostOf(t, first.URL)).State == service.StateDraining && n.worker(t, hostOf(t, second.URL)).State == service.StateReady
	})
	if a := ask(t, hc, n.public, "llama"); a.status != http.StatusOK || second.count() != 1 {
		t.Errorf("a request got %d %s", a.status, a.body)
	}
	close(step)
	if problem := <-answer; problem != "" {
		t.Errorf("the stream of the removed replica: %s", problem)
	}
	testkit.Eventually(t, "the first is removed", func() bool { return len(n.origins(t)) == 1 })

	list(t, path, second.URL, "nonsense")
	testkit.Eventually(t, "an alert", func() bool { return n.discoveryAlert(t) != nil })
	if a := n.discoveryAlert(t); !strings.Contains(a.Message, `line 2: must be http://HOST:PORT or https://HOST:PORT, got "nonsense"`) || a.Object != origin || a.Since == nil {
		t.Errorf("got %+v", a)
	}
	list(t, path)
	testkit.Eventually(t, "another alert", func() bool {
		a := n.discoveryAlert(t)
		return a != nil && strings.Contains(a.Message, "contains no replica")
	})
	if got := n.origins(t); len(got) != 1 || got[second.URL] != origin {
		t.Errorf("after broken files: %v", got)
	}
	list(t, path, "[]")
	testkit.Eventually(t, "no replica and no alert", func() bool { return len(n.origins(t)) == 0 && n.discoveryAlert(t) == nil })
}

// hostOf returns the default id of a replica.
func hostOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// The source of a discovered replica alone decides whether it is attached. An operator can drain it, and
// attach it again.
func TestDiscoveredReplicaBelongsToItsSource(t *testing.T) {
	e := newEngine(t, "llama", "")
	path := filepath.Join(t.TempDir(), "replicas")
	list(t, path, e.URL)
	cfg := config("lb-us-0", "local/us")
	cfg.ReplicasFile = path
	n := start(t, cfg, Options{})
	ready(t, n)
	hc, id := client(t), hostOf(t, e.URL)
	post := func(path string) (int, string) {
		t.Helper()
		res, err := hc.Post(n.adminURL+path, "", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, bodyText(t, res)
	}
	if code, text := post("/remove_worker?url=" + e.URL); code != http.StatusConflict || !strings.Contains(text, "file "+path) || !strings.Contains(text, "/drain") {
		t.Errorf("removing it: %d %s", code, text)
	}
	_, err := n.admin.AddWorker(t.Context(), service.ReplicaConfig{ID: id, URL: "http://127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), "comes from file") {
		t.Errorf("moving it: %v", err)
	}
	if err := n.admin.DrainWorker(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	other := newEngine(t, "llama", "")
	list(t, path, e.URL, other.URL)
	testkit.Eventually(t, "the other is attached", func() bool { return len(n.origins(t)) == 2 })
	if w := n.worker(t, id); w.State != service.StateDraining {
		t.Errorf("a change of the file ended the drain: %+v", w)
	}
	if code, text := post("/add_worker?url=" + e.URL); code != http.StatusOK {
		t.Errorf("attaching it again: %d %s", code, text)
	}
	if w := n.worker(t, id); w.State == service.StateDraining || w.Origin != "file "+path {
		t.Errorf("after attaching it again: %+v", w)
	}
}

// bodyText reads and closes the body of a response.
func bodyText(t *testing.T, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fixedResolver resolves every name to addresses that can change.
type fixedResolver struct {
	mu        sync.Mutex
	addresses []netip.Addr
	err       error
}

func (r *fixedResolver) set(err error, addresses ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses, r.err = nil, err
	for _, a := range addresses {
		r.addresses = append(r.addresses, netip.MustParseAddr(a))
	}
}

// LookupNetIP implements discover.Resolver.
func (r *fixedResolver) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.addresses), r.err
}

// LookupSRV implements discover.Resolver.
func (r *fixedResolver) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	return "", nil, errors.New("no such service")
}

// Every address of a DNS name is a replica of its own. A reload changes the names, and a name that cannot be
// resolved raises an alert.
func TestReplicasOfDNSName(t *testing.T) {
	e := newEngine(t, "llama", "127.0.0.1:0")
	_, port, err := net.SplitHostPort(hostOf(t, e.URL))
	if err != nil {
		t.Fatal(err)
	}
	resolver := &fixedResolver{}
	resolver.set(nil, "127.0.0.1", "::ffff:127.0.0.2")
	name := service.ReplicaConfig{ID: "paris", URL: "dns+http://engines.example.com:" + port, Model: "llama"}
	f := startFiled(t, config("lb-us-0", "local/us", name), Options{Resolver: resolver})
	ready(t, f.node)
	testkit.Eventually(t, "both addresses are replicas", func() bool { return len(f.origins(t)) == 2 })
	if w := f.worker(t, "paris-127.0.0.1:"+port); w.Model != "llama" || w.Origin != "dns "+name.URL || w.State != service.StateReady {
		t.Errorf("got %+v", w)
	}
	resolver.set(errors.New("no name server responds"))
	f.change(func(c *service.BalancerConfig) {
		c.Replicas = append(c.Replicas, service.ReplicaConfig{URL: "srv+http://_vllm._tcp.example.com"})
	})
	if done := f.reload(); len(done.Changed) != 1 {
		t.Errorf("the reload changed %+v", done)
	}
	testkit.Eventually(t, "an alert", func() bool { return f.discoveryAlert(t) != nil })
	if got := f.origins(t); len(got) != 2 {
		t.Errorf("replicas %v", got)
	}
	f.change(func(c *service.BalancerConfig) { c.Replicas = nil })
	f.reload()
	testkit.Eventually(t, "no replica and no alert", func() bool { return len(f.origins(t)) == 0 && f.discoveryAlert(t) == nil })
}

// A replica that is listed in two places is attached once, and an alert says so. When the other place drops
// it, it stays.
func TestReplicaListedTwice(t *testing.T) {
	t.Parallel()
	e := newEngine(t, "llama", "")
	path := filepath.Join(t.TempDir(), "replicas")
	list(t, path, e.URL)
	f := startFiled(t, config("lb-us-0", "local/us", service.ReplicaConfig{URL: e.URL}), Options{})
	ready(t, f.node)
	f.change(func(c *service.BalancerConfig) { c.ReplicasFile = path })
	f.reload()
	testkit.Eventually(t, "an alert", func() bool { return f.discoveryAlert(t) != nil })
	if a := f.discoveryAlert(t); !strings.Contains(a.Message, hostOf(t, e.URL)+" (attached by config)") {
		t.Errorf("got %+v", a)
	}
	if got := f.origins(t); len(got) != 1 || got[e.URL] != "config" {
		t.Errorf("attached %v", got)
	}
	f.change(func(c *service.BalancerConfig) { c.Replicas = nil })
	f.reload()
	testkit.Eventually(t, "the file owns it", func() bool { return f.origins(t)[e.URL] == "file "+path && f.discoveryAlert(t) == nil })
	if a := ask(t, client(t), f.public, "llama"); a.status != http.StatusOK {
		t.Errorf("a request got %d %s", a.status, a.body)
	}
}

// A replica of the file that a reload adds to the configuration too stays when the file drops it, with the settings of
// the configuration.
func TestReloadAddsReplicaOfFile(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]service.ReplicaConfig{"same settings": {}, "other settings": {DataParallel: 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, "llama", "")
			path := filepath.Join(t.TempDir(), "replicas")
			list(t, path, e.URL)
			cfg := config("lb-us-0", "local/us")
			cfg.ReplicasFile = path
			f := startFiled(t, cfg, Options{})
			testkit.Eventually(t, "the file's replica is attached", func() bool { return len(f.origins(t)) == 1 })
			entry.URL = e.URL
			f.change(func(c *service.BalancerConfig) { c.Replicas = []service.ReplicaConfig{entry} })
			f.reload()
			if a := f.discoveryAlert(t); a == nil || !strings.Contains(a.Message, fmt.Sprintf("config lists replicas that are attached already: %s (attached by file %s)", hostOf(t, e.URL), path)) {
				t.Errorf("got %+v", a)
			}
			list(t, path, "[]")
			testkit.Eventually(t, "the configuration owns it", func() bool { return f.origins(t)[e.URL] == "config" && f.discoveryAlert(t) == nil })
			if w := f.worker(t, hostOf(t, e.URL)); w.DataParallel != entry.DataParallel {
				t.Errorf("it is %+v", w)
			}
			f.change(func(c *service.BalancerConfig) { c.Replicas = nil })
			if done := f.reload(); len(done.Changed) != 1 || len(done.NotApplied) != 0 {
				t.Errorf("the last reload did %+v", done)
			}
		})
	}
}

// A file that cannot be read is an error of the configuration, at the start and at a reload.
func TestMissingReplicasFileIsRefused(t *testing.T) {
	cfg := config("lb-us-0", "local/us")
	cfg.Listen, cfg.Admin, cfg.ReplicasFile = "127.0.0.1:0", "127.0.0.1:0", filepath.Join(t.TempDir(), "missing")
	var ce *ConfigError
	if err := Run(t.Context(), cfg, Options{}); !errors.As(err, &ce) || ce.Key != "replicas_file" {
		t.Errorf("at the start: %v", err)
	}
	f := startFiled(t, config("lb-us-0", "local/us"), Options{})
	f.change(func(c *service.BalancerConfig) { c.ReplicasFile = cfg.ReplicasFile })
	if got := f.refused(); !strings.Contains(got, "replicas_file: reading") {
		t.Errorf("at a reload: %s", got)
	}
}

func TestHintOfAReplicasFileFitsItsError(t *testing.T) {
	missing, path := filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "replicas")
	for _, c := range []struct{ name, path, text, want string }{
		{"missing", missing, "", "create the file with one URL per line; without replicas, it contains []"},
		{"empty", path, "# none\n", "write one URL per line; without replicas, write []"},
		{"invalid URL", path, "http://a:1\nnonsense\n", "correct line 2 of " + path},
		{"two engines of a host", path, "http://a:1/a\nhttp://a:1/b\n", "write a list that gives each of them an id: - {url: URL, id: ID}"},
		{"two documents", path, "- http://a:1\n---\n- http://b:1\n", ""},
		{"a folder", t.TempDir(), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.path == path {
				if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cfg := config("lb-us-0", "local/us")
			cfg.Listen, cfg.Admin, cfg.ReplicasFile = "127.0.0.1:0", "127.0.0.1:0", c.path
			ce := &ConfigError{}
			if err := CheckConfig(cfg, Options{}); !errors.As(err, &ce) || ce.Hint != c.want {
				t.Errorf("got %v, hint %q, want %q", err, ce.Hint, c.want)
			}
		})
	}
}

// A reload that removes an entry of the configuration keeps a replica that another origin has attached: it
// never belonged to the configuration.
func TestReloadKeepsReplicasOfOtherOrigins(t *testing.T) {
	t.Parallel()
	listed, added := newEngine(t, "llama", ""), newEngine(t, "llama", "")
	path := filepath.Join(t.TempDir(), "replicas")
	list(t, path, listed.URL)
	cfg := config("lb-us-0", "local/us")
	cfg.ReplicasFile = path
	f := startFiled(t, cfg, Options{})
	testkit.Eventually(t, "the file's replica is attached", func() bool { return len(f.origins(t)) == 1 })
	if _, err := f.admin.AddWorker(t.Context(), service.ReplicaConfig{URL: added.URL}); err != nil {
		t.Fatal(err)
	}
	f.change(func(c *service.BalancerConfig) {
		c.Replicas = []service.ReplicaConfig{{URL: listed.URL, Model: "llama"}, {URL: added.URL}}
	})
	if done := f.reload(); !slices.Equal(done.NotApplied, []string{hostOf(t, listed.URL)}) {
		t.Errorf("the first reload did %+v", done)
	}
	f.change(func(c *service.BalancerConfig) { c.Replicas = nil })
	if done := f.reload(); len(done.Changed) != 0 || len(done.NotApplied) != 2 {
		t.Errorf("the second reload did %+v", done)
	}
	if got := f.origins(t); got[listed.URL] != "file "+path || got[added.URL] != originAPI {
		t.Errorf("attached %v", got)
	}
}
