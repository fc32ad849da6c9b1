package discover

import (
	"errors"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// applied collects the current replicas of each origin.
type applied struct {
	mu      sync.Mutex
	urls    map[string][]string
	models  map[string]string // by URL
	removed []string          // origins without replicas, in order
}

func (a *applied) take(origin string, replicas []service.ReplicaConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.urls == nil {
		a.urls, a.models = map[string][]string{}, map[string]string{}
	}
	a.urls[origin] = urls(replicas)
	for _, r := range replicas {
		a.models[r.URL] = r.Model
	}
	if replicas == nil {
		a.removed = append(a.removed, origin)
	}
}

// model returns the model of the replica with a URL.
func (a *applied) model(url string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.models[url]
}

// all returns the URLs of all origins, sorted.
func (a *applied) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(a.urls))...)))
}

// expect waits until exactly these URLs are in effect.
func (a *applied) expect(t *testing.T, want ...string) {
	t.Helper()
	testkit.Eventually(t, strings.Join(want, " "), func() bool { return slices.Equal(a.all(), want) })
}

// Files and names are followed while they change, and their replicas are removed with them. A broken file
// raises a problem with its line, and keeps the replicas.
func TestDiscovery(t *testing.T) {
	server, resolver := newNameServer(t)
	server.set("e.example.com", "A 127.0.0.2")
	server.set("f.example.com", "A 127.0.0.9")
	path := filepath.Join(t.TempDir(), "replicas")
	write(t, path, "http://a:1\n")
	var got applied
	d := New(Options{CheckURL: checkHTTP, Apply: got.take, Resolver: resolver, FileInterval: time.Millisecond, NameInterval: time.Millisecond})
	defer d.Close()
	name := service.ReplicaConfig{URL: "dns+http://e.example.com:1"}
	d.SetSources(path, []service.ReplicaConfig{name})
	got.expect(t, "http://127.0.0.2:1", "http://a:1")

	replaceFile(t, path, "http://b:1\ndns+http://f.example.com:2\n")
	got.expect(t, "http://127.0.0.2:1", "http://127.0.0.9:2", "http://b:1")

	replaceFile(t, path, "http://b:1\nnonsense\n")
	var problems []Problem
	testkit.Eventually(t, "a problem", func() bool { problems = d.Problems(); return len(problems) == 1 })
	if p := problems[0]; p.Origin != "file "+path || !strings.Contains(p.Message, "line 2: must be http://HOST:PORT") || !strings.Contains(p.Message, "the last valid list with 2 entries") || p.Since.IsZero() || p.NextStep == "" {
		t.Errorf("got %+v", p)
	}
	got.expect(t, "http://127.0.0.2:1", "http://127.0.0.9:2", "http://b:1")

	server.fail(true)
	testkit.Eventually(t, "three problems", func() bool { problems = d.Problems(); return len(problems) == 3 })
	server.fail(false)
	replaceFile(t, path, "http://b:1\n")
	testkit.Eventually(t, "no problem", func() bool { return len(d.Problems()) == 0 })
	got.expect(t, "http://127.0.0.2:1", "http://b:1")

	d.SetSources("", []service.ReplicaConfig{name})
	got.expect(t, "http://127.0.0.2:1")
	d.SetSources("", nil)
	got.expect(t)
	if p := d.Problems(); len(p) != 0 {
		t.Errorf("problems of no source: %+v", p)
	}
}

// A DNS name with other settings is resolved again. Its replicas are changed, and not removed meanwhile.
func TestChangedSettingsOfANameTakeEffect(t *testing.T) {
	server, resolver := newNameServer(t)
	server.set("e.example.com", "A 127.0.0.2")
	server.set("f.example.com", "A 127.0.0.9")
	path := filepath.Join(t.TempDir(), "replicas")
	write(t, path, "- {url: dns+http://f.example.com:2, model: a}\n- http://c:1\n")
	var got applied
	d := New(Options{CheckURL: checkHTTP, Apply: got.take, Resolver: resolver, FileInterval: time.Millisecond, NameInterval: time.Millisecond})
	defer d.Close()
	name := service.ReplicaConfig{URL: "dns+http://e.example.com:1", Model: "a"}
	d.SetSources(path, []service.ReplicaConfig{name})
	got.expect(t, "http://127.0.0.2:1", "http://127.0.0.9:2", "http://c:1")

	name.Model = "b"
	d.SetSources(path, []service.ReplicaConfig{name})
	replaceFile(t, path, "- {url: dns+http://f.example.com:2, model: b}\n- http://c:1\n")
	testkit.Eventually(t, "both have the other model", func() bool {
		return got.model("http://127.0.0.2:1") == "b" && got.model("http://127.0.0.9:2") == "b"
	})
	got.mu.Lock()
	defer got.mu.Unlock()
	if got.removed != nil {
		t.Errorf("removed meanwhile: %v", got.removed)
	}
}

// The same DNS name in the configuration and in a file has two origins: the end of one does not remove the
// replicas of the other.
func TestNameInConfigurationAndFile(t *testing.T) {
	server, resolver := newNameServer(t)
	server.set("e.example.com", "A 127.0.0.2")
	path := filepath.Join(t.TempDir(), "replicas")
	const url, replica = "dns+http://e.example.com:1", "http://127.0.0.2:1"
	write(t, path, "http://a:1\n"+url+"\n")
	var got applied
	d := New(Options{CheckURL: checkHTTP, Apply: got.take, Resolver: resolver, FileInterval: time.Millisecond, NameInterval: time.Millisecond})
	defer d.Close()
	d.SetSources(path, []service.ReplicaConfig{{URL: url}})
	got.expect(t, replica, replica, "http://a:1")
	replaceFile(t, path, "http://a:1\n")
	got.expect(t, replica, "http://a:1")
	d.SetSources(path, nil)
	got.expect(t, "http://a:1")
	d.SetSources("", nil)
	want := []string{"file " + path + ": dns " + url, "dns " + url, "file " + path}
	if got.mu.Lock(); !slices.Equal(got.removed, want) {
		t.Errorf("removed %q, want %q", got.removed, want)
	}
	got.mu.Unlock()
}

func TestSplit(t *testing.T) {
	static, names := Split([]service.ReplicaConfig{{URL: "http://a:1"}, {URL: "dns+http://b:1"}, {URL: "srv+http://c"}})
	if !reflect.DeepEqual(urls(static), []string{"http://a:1"}) || !reflect.DeepEqual(urls(names), []string{"dns+http://b:1", "srv+http://c"}) {
		t.Errorf("got %v and %v", static, names)
	}
}

// The message about a source that fails has the singular for one replica.
func TestProblemCountsReplicas(t *testing.T) {
	for have, want := range map[int][2]string{
		1: {"the last valid list with 1 entry stays in effect", "the last answer with 1 address stays in effect"},
		2: {"the last valid list with 2 entries stays in effect", "the last answer with 2 addresses stays in effect"},
	} {
		for i, s := range []source{&fileSource{}, &nameSource{}} {
			if message, _ := s.problem(errors.New("no"), have); !strings.HasSuffix(message, want[i]) {
				t.Errorf("got %q, want %q", message, want[i])
			}
		}
	}
}
