package proxy

import (
	"net/url"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

func TestSamePeerTokenSameHashes(t *testing.T) {
	p, err := policy.New("cost")
	if err != nil {
		t.Fatal(err)
	}
	newRuntime := func(token string) *Runtime {
		r, err := New(Options{Self: service.BalancerConfig{ID: "lb", PeerToken: token}, Core: core.DefaultConfig(p)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b, other := newRuntime("one"), newRuntime("one"), newRuntime("two")
	if a.seed != b.seed || a.KeyFingerprint() != b.KeyFingerprint() || len(a.KeyFingerprint()) != 16 {
		t.Errorf("of one token: seeds %x and %x, fingerprints %q and %q", a.seed, b.seed, a.KeyFingerprint(), b.KeyFingerprint())
	}
	if a.seed == other.seed || a.KeyFingerprint() == other.KeyFingerprint() {
		t.Error("two tokens give one seed or fingerprint")
	}
	alone, again := newRuntime(""), newRuntime("")
	if alone.seed == again.seed || alone.KeyFingerprint() != "" {
		t.Errorf("without a token: seeds %x and %x, fingerprint %q", alone.seed, again.seed, alone.KeyFingerprint())
	}
}

func TestProcessNameIsUniqueAndHidesSecrets(t *testing.T) {
	name := func(raw, model string) string {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		return processName(u, model)
	}
	seen := map[string]string{}
	for _, c := range [][2]string{{"http://a:1", "m"}, {"http://a:2", "m"}, {"http://a:1", "n"}, {"http://user:password@a:1", "m"}} {
		got := name(c[0], c[1])
		if other := seen[got]; other != "" || strings.Contains(got, "password") {
			t.Errorf("%v is called %s, as is %s", c, got, other)
		}
		seen[got] = c[0]
	}
	if name("http://a:1/", "m") != name("http://a:1", "m") {
		t.Error("a slash at the end makes another process")
	}
}
