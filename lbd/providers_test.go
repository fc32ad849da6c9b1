package lbd

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/proxy"
)

// startProvider starts an external API that requires a key.
func startProvider(t *testing.T, key string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("Authorization") != "Bearer "+key {
			http.Error(w, `{"error":{"message":"invalid key"}}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"from outside"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100}}`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// A balancer reads providers and their keys from its configuration, and a reload changes them. An alert
// and a metric show that a model is served by its fallback.
func TestProvidersFromConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, "sk-old\n")
	cfg := config("lb", "local/us")
	cfg.Models = []service.BalancerModel{{Name: "llama", Fallback: []string{"ext/gpt"}}}
	cfg.Providers = []service.Provider{{Name: "ext", URL: startProvider(t, "sk-new"), APIKey: "file:" + file, Models: []service.ProviderModel{{Name: "gpt", Price: &service.Price{Input: 2, Output: 10}}}, USDPerDay: 1}}
	log := &lines{}
	f := startFiled(t, cfg, Options{Logger: log.logger()})
	hc := client(t)
	if got := ask(t, hc, f.public, "llama"); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "no_replica") {
		t.Errorf("with a wrong key: %d %s", got.status, got.body)
	}
	const failed = "requests for llama go to its fallback ext/gpt: no replica serves it; a fallback failed within the last minute: ext/gpt rejects the API key that the balancer has for it (401)"
	if alerts := f.snapshot(t).Alerts; len(alerts) != 1 || alerts[0].Message != failed {
		t.Errorf("with a wrong key: alerts %+v", alerts)
	}
	write(t, file, "sk-new\n")
	if done := f.reload(); fmt.Sprint(done.Changed) != "[providers]" {
		t.Errorf("changed %q", done.Changed)
	}
	testkit.Eventually(t, "the provider serves", func() bool { // its circuit breaker may have to close
		got := ask(t, hc, f.public, "llama")
		return got.status == http.StatusOK && strings.Contains(got.body, "from outside") && got.header.Get("X-Skyserve-Replica") == "ext/gpt"
	})
	if got := f.metric(t, hc, `skyserve_provider_usd_total{provider="ext"}`); got != `skyserve_provider_usd_total{provider="ext"} 0.003` {
		t.Errorf("the cost is %q", got)
	}
	alerts := f.snapshot(t).Alerts
	if len(alerts) != 1 || alerts[0].Kind != "fallback" || alerts[0].Object != "llama" || alerts[0].Message != failed { // a served request does not hide the failures of others
		t.Errorf("alerts %+v", alerts)
	}
	if workers := f.worker(t, "ext/gpt"); workers.ID != "" || strings.Contains(log.String(), "sk-new") {
		t.Errorf("listed as a worker: %+v, or its key is logged", workers)
	}
	f.change(func(c *service.BalancerConfig) { c.Providers, c.Models[0].Fallback = nil, nil })
	if done := f.reload(); fmt.Sprint(done.Changed) != "[providers models]" {
		t.Errorf("changed %q", done.Changed)
	}
	if got := ask(t, hc, f.public, "llama"); got.status != http.StatusServiceUnavailable {
		t.Errorf("without a provider: %d %s", got.status, got.body)
	}
}

// The alert names the cause of every rejection that leads to a fallback.
func TestFallbackAlertsNameTheCause(t *testing.T) {
	for _, reason := range []string{
		core.RejectNoReplica, core.RejectNoAdapter, core.RejectQueueFull, core.RejectWaitExceeded, core.RejectStartExceeded,
		core.RejectFailed, core.RejectRetriesExhausted, core.RejectRetryBudget, core.RejectRefused,
	} {
		alerts := fallbackAlerts("local/us", false, []proxy.FallbackStatus{{Model: "llama", To: "ext/gpt", Reason: reason}})
		if message := alerts[0].Message; strings.HasSuffix(message, ": ") || !strings.HasPrefix(message, "requests for llama are served by its fallback ext/gpt: ") {
			t.Errorf("%s: %q", reason, message)
		}
	}
}

func TestInvalidProvidersAreErrors(t *testing.T) {
	for want, change := range map[string]func(*service.BalancerConfig){
		`models[0].fallback[0]: must be another model or PROVIDER/MODEL, got "ext/none"`:        func(c *service.BalancerConfig) { c.Models[0].Fallback[0] = "ext/none" },
		`models[0].fallback[0]: must be another model or PROVIDER/MODEL, got "llama"`:           func(c *service.BalancerConfig) { c.Models[0].Fallback[0] = "llama" },
		"providers[0].url: must start with https://: prompts and the API key leave the machine": func(c *service.BalancerConfig) { c.Providers[0].URL = "http://api.example.com" },
		"providers[0].url: must not contain a user or password":                                 func(c *service.BalancerConfig) { c.Providers[0].URL = "https://u:p@api.example.com" },
		"providers[0].models[0].price: is required with usd_per_day":                            func(c *service.BalancerConfig) { c.Providers[0].USDPerDay = 1 },
		"providers[0]: limits must be at least 0":                                               func(c *service.BalancerConfig) { c.Providers[0].Concurrent = -1 },
		`providers[1]: id "ext" is already used by providers[0]`:                                func(c *service.BalancerConfig) { c.Providers = append(c.Providers, c.Providers[0]) },
		"models[0].fallback_after: must be at least 0, got -1ns":                                func(c *service.BalancerConfig) { c.Models[0].FallbackAfter = -1 },
	} {
		cfg := config("lb", "local/us")
		cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
		cfg.Models = []service.BalancerModel{{Name: "llama", Fallback: []string{"ext/gpt"}}}
		cfg.Providers = []service.Provider{{Name: "ext", URL: "https://api.example.com", Models: []service.ProviderModel{{Name: "gpt"}}}}
		if err := CheckConfig(cfg, Options{}); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		if err := CheckConfig(cfg, Options{}); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
