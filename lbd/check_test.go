package lbd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// acmeOf configures a balancer to obtain its certificate.
func acmeOf(to service.CertificateConfig, challenge string) func(*service.BalancerConfig, *Options) {
	return func(c *service.BalancerConfig, _ *Options) {
		c.Balancer.TLS = &service.TLS{ACME: &service.ACME{Email: "me@example.com", Challenge: challenge}}
		c.Certificate = &to
	}
}

func TestCheck(t *testing.T) {
	replica := func(id, url string) func(*service.BalancerConfig, *Options) {
		return func(c *service.BalancerConfig, _ *Options) {
			c.Replicas = append(c.Replicas, service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:1"}, service.ReplicaConfig{ID: id, URL: url})
		}
	}
	peer := func(p service.PeerConfig) func(*service.BalancerConfig, *Options) {
		return func(c *service.BalancerConfig, _ *Options) { c.Peers = []service.PeerConfig{p} }
	}
	balancer := func(b service.BalancerSpec) func(*service.BalancerConfig, *Options) {
		return func(c *service.BalancerConfig, _ *Options) { c.Balancer = b }
	}
	for _, c := range []struct {
		name   string
		change func(*service.BalancerConfig, *Options)
		want   string // "" = valid
	}{
		{"unchanged", func(*service.BalancerConfig, *Options) {}, ""},
		{"no id", func(c *service.BalancerConfig, _ *Options) { c.ID = "" }, "id: is required"},
		{"no region", func(c *service.BalancerConfig, _ *Options) { c.Region = "" }, "region: is required"},
		{"model without name", func(c *service.BalancerConfig, _ *Options) { c.Models = []service.BalancerModel{{}} }, "models[0].name: is required"},
		{"adapter with a model's name", func(c *service.BalancerConfig, _ *Options) {
			c.Models = []service.BalancerModel{{Name: "sql", LoRA: []string{"base"}}, {Name: "base"}}
		}, `models[0].lora[0]: adapter "base" of model "sql": this name is already used by a model`},
		{"adapter with an alias's name", func(c *service.BalancerConfig, _ *Options) {
			c.Models = []service.BalancerModel{{Name: "base", Aliases: []string{"small"}, LoRA: []string{"small"}}}
		}, `models[0].lora[0]: adapter "small" of model "base": this name is already used by an alias of model "base"`},
		{"adapter of two models", func(c *service.BalancerConfig, _ *Options) {
			c.Models = []service.BalancerModel{{Name: "a", LoRA: []string{"sql"}}, {Name: "b", LoRA: []string{"sql"}}}
		}, `models[1].lora[0]: adapter "sql" of model "b": this name is already used by an adapter of model "a"`},
		{"adapter of an alias", func(c *service.BalancerConfig, _ *Options) {
			c.Models = []service.BalancerModel{{Name: "base", Aliases: []string{"small"}}, {Name: "small", LoRA: []string{"sql"}}}
		}, `models[1].lora: "small" is an alias of model "base"`},
		{"adapters", func(c *service.BalancerConfig, _ *Options) {
			c.Models = []service.BalancerModel{{Name: "a", Aliases: []string{"x"}, LoRA: []string{"sql", "law"}}, {Name: "b", LoRA: []string{"c"}}}
		}, ""},
		{"no port", func(c *service.BalancerConfig, _ *Options) { c.Listen = "localhost" }, `listen: must be HOST:PORT, got "localhost"`},
		{"no admin", func(c *service.BalancerConfig, _ *Options) { c.Admin = "" }, `admin: must be HOST:PORT, got ""`},
		{"public without keys", func(c *service.BalancerConfig, _ *Options) { c.Listen = ":8000" }, "listen: :8000 is reachable from other machines, and no API keys are set"},
		{"public with keys", func(c *service.BalancerConfig, _ *Options) {
			c.Listen, c.Balancer.Auth = ":8000", &service.Auth{KeysFrom: "env:KEYS"}
		}, ""},
		{"public without auth", func(c *service.BalancerConfig, o *Options) { c.Listen, o.InsecureNoAuth = "0.0.0.0:8000", true }, ""},
		{"public admin", func(c *service.BalancerConfig, o *Options) { c.Admin, o.InsecureNoAuth = ":8100", true }, "admin: :8100 is reachable from other machines, and no admin token is set"},
		{"admin with a token", func(c *service.BalancerConfig, o *Options) { c.Admin, o.AdminToken = ":8100", "t" }, ""},
		{"replica without scheme", replica("us-1", "127.0.0.1"), `replicas[1].url: must be http://HOST:PORT or https://HOST:PORT, got "127.0.0.1"`},
		{"same id", replica("us-0", "http://127.0.0.1:2"), `replicas[1]: id "us-0" is already used by replicas[0]`},
		{"same url", replica("", "http://127.0.0.1:2"), ""},
		{"same DNS name", func(c *service.BalancerConfig, _ *Options) {
			c.Replicas = []service.ReplicaConfig{{ID: "a", URL: "dns+http://e:1"}, {ID: "b", URL: "dns+http://e:1/"}}
		}, "replicas[1].url: dns+http://e:1/ is already listed by replicas[0]"},
		{"host beside its DNS name", func(c *service.BalancerConfig, _ *Options) {
			c.Replicas = []service.ReplicaConfig{{URL: "http://e:1"}, {URL: "dns+http://e:1"}, {ID: "x", URL: "http://f:1"}, {ID: "x", URL: "dns+http://f:1"}}
		}, ""},
		{"two paths of a DNS name", func(c *service.BalancerConfig, _ *Options) {
			c.Replicas = []service.ReplicaConfig{{URL: "dns+http://e:1/a"}, {URL: "dns+http://e:1/b"}}
		}, `replicas[1]: id "e:1" is already used by replicas[0]`},
		{"peer without id", peer(service.PeerConfig{URL: "http://127.0.0.1:2"}), "peers[0].id: is required"},
		{"peer without url", peer(service.PeerConfig{ID: "eu"}), "peers[0].url: is required"},
		{"peer with the balancer's id", peer(service.PeerConfig{ID: "lb-us-0", URL: "http://127.0.0.1:2"}), `peers[0]: id "lb-us-0" is already used by id`},
		{"negative peer RTT", peer(service.PeerConfig{ID: "eu", URL: "http://127.0.0.1:2", EmulateRTT: -1}), "peers[0].emulate_rtt: must be at least 0, got -1ns"},
		{"peer on this machine", peer(service.PeerConfig{ID: "eu", URL: "http://127.0.0.1"}), ""},
		{"peer on another machine without a peer token", peer(service.PeerConfig{ID: "eu", URL: "http://10.0.0.1:8000"}), "peer_token: is required: without SKYSERVE_PEER_TOKEN a balancer accepts only peers on its own machine"},
		{"peer on another machine", func(c *service.BalancerConfig, _ *Options) {
			c.Peers, c.PeerToken = []service.PeerConfig{{ID: "eu", URL: "http://10.0.0.1:8000"}}, "t"
		}, ""},
		{"keys without a peer token", func(c *service.BalancerConfig, _ *Options) {
			c.Peers, c.Balancer.Auth = []service.PeerConfig{{ID: "eu", URL: "http://127.0.0.1:2"}}, &service.Auth{KeysFrom: "env:KEYS"}
		}, "peer_token: is required: SKYSERVE_PEER_TOKEN distinguishes peers from clients, which must present keys"},
		{"keys and a peer token", func(c *service.BalancerConfig, _ *Options) {
			c.Peers, c.Balancer.Auth, c.PeerToken = []service.PeerConfig{{ID: "eu", URL: "http://127.0.0.1:2"}}, &service.Auth{KeysFrom: "env:KEYS"}, "t"
		}, ""},
		{"unknown policy", balancer(service.BalancerSpec{Policy: "skylbb"}), "balancer.policy: "},
		{"too many ranks", func(c *service.BalancerConfig, _ *Options) {
			c.Replicas = []service.ReplicaConfig{{URL: "http://127.0.0.1:2", DataParallel: 65}}
		}, "replicas[0].data_parallel: must be from 0 to 64, got 65"},
		{"pooling policy", balancer(service.BalancerSpec{Policy: "bf-io"}), ""},
		{"unknown order", balancer(service.BalancerSpec{Order: "lifo"}), "balancer.order: "},
		{"unknown tier", func(c *service.BalancerConfig, _ *Options) {
			c.Models = []service.BalancerModel{{Name: "m", SLO: map[service.Tier]service.SLO{"IW-X": {TTFT: time.Second}}}}
		}, "models[0].slo: unknown tier"},
		{"negative target", func(c *service.BalancerConfig, _ *Options) {
			c.Models = []service.BalancerModel{{Name: "m", SLO: map[service.Tier]service.SLO{service.TierFast: {TTFT: -1}}}}
		}, "models[0].slo: times must be at least 0"},
		{"negative threshold", balancer(service.BalancerSpec{SevereAfter: -1}), "balancer.dpa_severe_after: must be at least 0, got -1ns"},
		{"unknown push", balancer(service.BalancerSpec{Push: "outstanding:0"}), "balancer.push: "},
		{"negative wait", balancer(service.BalancerSpec{MaxWait: -time.Second}), "balancer.max_wait: must be at least 0, got -1s"},
		{"negative cold wait", balancer(service.BalancerSpec{MaxColdWait: -time.Second}), "balancer.max_cold_wait: must be at least 0, got -1s"},
		{"certificate without key", balancer(service.BalancerSpec{TLS: &service.TLS{Cert: "c"}}), "balancer.tls: requires both cert and key"},
		{"acme", acmeOf(service.CertificateConfig{Name: "chat.example.com", Dir: "d"}, ""), ""},
		{"acme without a name", acmeOf(service.CertificateConfig{Dir: "d"}, ""), "certificate: requires name and dir"},
		{"acme with unknown challenge", acmeOf(service.CertificateConfig{Name: "chat.example.com", Dir: "d"}, "dns"), "balancer.tls.acme.challenge: must be one of dns-01, http-01, tls-alpn-01, got \"dns\""},
		{"acme on invalid port", acmeOf(service.CertificateConfig{Name: "chat.example.com", Dir: "d", Listen: "80"}, "http-01"), `certificate.listen: must be HOST:PORT with the challenge http-01, got "80"`},
		{"acme without DNS records", acmeOf(service.CertificateConfig{Name: "chat.example.com", Dir: "d"}, "dns-01"), "balancer.tls.acme.challenge: dns-01"},
		{"acme with a shared certificate", acmeOf(service.CertificateConfig{Name: "chat.example.com", Dir: "d", FollowOnly: true}, "dns-01"), ""},
		{"acme shared without peer token", func(c *service.BalancerConfig, o *Options) {
			acmeOf(service.CertificateConfig{Name: "chat.example.com", Dir: "d"}, "")(c, o)
			c.StoreURL = "nats://127.0.0.1:1"
		}, "peer_token: is required: it encrypts the certificate"},
		{"certificate without acme", func(c *service.BalancerConfig, _ *Options) {
			c.Certificate = &service.CertificateConfig{Name: "chat.example.com", Dir: "d"}
		}, "certificate: applies only with balancer.tls.acme"},
		{"memory", balancer(service.BalancerSpec{Memory: service.Memory{Total: service.GiB, Tenant: 64 * service.MiB}}), ""},
		{"too little memory", balancer(service.BalancerSpec{Memory: service.Memory{Total: service.MiB}}), "balancer.memory.total: must be at least 256MiB"},
		{"share exceeds total", balancer(service.BalancerSpec{Memory: service.Memory{Requests: 2 * service.GiB}}), "balancer.memory.requests: must be at most three quarters of total, which is 1536MiB"},
		{"traces to a collector", balancer(service.BalancerSpec{Traces: "http://127.0.0.1:4318"}), ""},
		{"invalid trace endpoint", balancer(service.BalancerSpec{Traces: "127.0.0.1:4318"}), "balancer.traces: must be a URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := service.BalancerConfig{ID: "lb-us-0", Region: "local/us", Listen: "127.0.0.1:8000", Admin: "127.0.0.1:8100"}
			var opts Options
			c.change(&cfg, &opts)
			err := CheckConfig(cfg, opts)
			if c.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			var ce *ConfigError
			if !errors.As(err, &ce) || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestEachNumberOutOfRangeIsAProblem(t *testing.T) {
	cfg := service.BalancerConfig{ID: "lb-us-0", Region: "local/us", Listen: "127.0.0.1:8000", Admin: "127.0.0.1:8100"}
	cfg.Balancer = service.BalancerSpec{
		SevereAfter: -1, UrgentBefore: -2, PeerQueueLimit: -3, QueueLimit: -4, MaxWait: -5, MaxColdWait: -6, DeferredMemoryPercent: 10, DeferredWaitPercent: 101,
		MaxTries: -7, RetryPercent: -8, EjectAfter: -9, EjectTime: -10,
	}
	var got []string
	for _, problem := range checkAll(cfg, Options{}) {
		got = append(got, problem.Error())
	}
	want := []string{
		"balancer.dpa_severe_after: must be at least 0, got -1ns", "balancer.dpa_urgent_before: must be at least 0, got -2ns",
		"balancer.peer_queue_limit: must be at least 0, got -3", "balancer.queue_limit: must be at least 0, got -4",
		"balancer.max_wait: must be at least 0, got -5ns", "balancer.max_cold_wait: must be at least 0, got -6ns",
		"balancer.deferred_memory_percent: must be from 11 to 100, got 10", "balancer.deferred_wait_percent: must be from 1 to 100, got 101",
		"balancer.max_tries: must be at least 0, got -7", "balancer.retry_percent: must be at least 0, got -8",
		"balancer.eject_after: must be at least 0, got -9", "balancer.eject_time: must be at least 0, got -10ns",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCoreConfig(t *testing.T) {
	no := false
	c, err := coreConfig(service.BalancerConfig{
		Balancer: service.BalancerSpec{
			Policy: "least-load", Push: "outstanding:9", Forward: &no, PeerQueueLimit: 3, QueueLimit: 5, MaxWait: time.Second,
			Order: "dpa", SevereAfter: 4 * time.Second, UrgentBefore: 3 * time.Second, HoldDeferred: &no,
		},
		Models: []service.BalancerModel{
			{Name: "a", SLO: map[service.Tier]service.SLO{
				service.TierFast: {TTFT: 2 * time.Second}, service.TierNormal: {E2E: time.Minute}, service.TierDeferred: {Deadline: time.Hour},
			}},
			{Name: "b"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Policy.Name() != "least-load" || c.Push != (core.PushMode{Kind: core.PushOutstanding, N: 9}) || c.Forward || c.PeerQueueLimit != 3 || c.QueueLimit != 5 || c.MaxWait != time.Second {
		t.Errorf("got %+v", c)
	}
	if c.Deferred != (core.DeferredRule{}) {
		t.Errorf("deferred requests are held: %+v", c.Deferred)
	}
	if c.Order != core.OrderDPA || c.SevereAfter != 4*time.Second || c.UrgentBefore != 3*time.Second {
		t.Errorf("order %s, tau_n %v, tau_p %v", c.Order, c.SevereAfter, c.UrgentBefore)
	}
	if want := map[string]core.TierDeadlines{"a": {Fast: 2 * time.Second, Deferred: time.Hour}}; !reflect.DeepEqual(c.ModelDeadlines, want) {
		t.Errorf("targets %+v, want %+v", c.ModelDeadlines, want)
	}
	c, err = coreConfig(service.BalancerConfig{})
	if err != nil || c.Policy.Name() != "cost" || !c.Forward || c.MaxWait != 60*time.Second || c.PeerQueueLimit != 10 {
		t.Errorf("defaults: %+v, %v", c, err)
	}
	// Both packages declare defaults: service for the balancer section, and core. The wait of
	// deferred requests in core is exactly 10 of 24 hours.
	d := core.DefaultConfig(c.Policy)
	d.Deferred.MaxParkedShare = 0.42
	if c.Order != d.Order || c.Deferred != d.Deferred || c.SevereAfter != d.SevereAfter || c.UrgentBefore != d.UrgentBefore || c.ModelDeadlines != nil {
		t.Errorf("order %s, tau_n %v, tau_p %v, targets %v; the core's own defaults are %s, %v, %v", c.Order, c.SevereAfter, c.UrgentBefore, c.ModelDeadlines, d.Order, d.SevereAfter, d.UrgentBefore)
	}
}

func TestAPIKeys(t *testing.T) {
	t.Setenv("SOME_KEYS", "sk-a\nsk-b")
	t.Setenv("NO_KEYS", " \n# none\n")
	for _, c := range []struct{ from, want, err string }{
		{"", "", ""},
		{"env:SOME_KEYS", "sk-a sk-b", ""},
		{"env:NO_KEYS", "", "env:NO_KEYS contains no key"},
		{"env:UNSET_KEYS", "", "environment variable UNSET_KEYS"},
		{"file:/nonexistent/keys", "", "no such file"},
		{"sk-pasted-here", "", "must be env:NAME or file:PATH"},
	} {
		got, err := apiKeys(keysFrom(c.from))
		if (err == nil) != (c.err == "") || (err != nil && (!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "sk-"))) {
			t.Errorf("%s: %v, want %s", c.from, err, c.err)
		}
		secrets := make([]string, len(got))
		for i, k := range got {
			secrets[i] = k.Secret
		}
		if got := strings.Join(secrets, " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.from, got, c.want)
		}
	}
	if err := Run(context.Background(), service.BalancerConfig{
		ID: "lb", Region: "us", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
		Balancer: service.BalancerSpec{Auth: &service.Auth{KeysFrom: "env:NO_KEYS"}},
	}, Options{}); err == nil {
		t.Error("a balancer that requires keys runs without any")
	}
}

func TestInvalidFiles(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, change := range map[string]func(*service.BalancerConfig){
		"balancer.tls": func(c *service.BalancerConfig) {
			c.Balancer.TLS = &service.TLS{Cert: filepath.Join(missing, "cert"), Key: filepath.Join(missing, "key")}
		},
		"record":    func(c *service.BalancerConfig) { c.Record = filepath.Join(missing, "record") },
		"store_url": func(c *service.BalancerConfig) { c.StoreURL = "nats://%zz" },
	} {
		cfg := service.BalancerConfig{ID: "lb", Region: "us", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"}
		change(&cfg)
		var ce *ConfigError
		if err := Run(context.Background(), cfg, Options{}); !errors.As(err, &ce) || ce.Key != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file of keys without a size is limited too.
func TestKeysFromEndlessFile(t *testing.T) {
	if _, err := apiKeys(keysFrom("file:/dev/zero")); err == nil || !strings.Contains(err.Error(), "/dev/zero must have at most 8388608 bytes") {
		t.Errorf("got %v", err)
	}
	if _, err := apiKeys(keysFrom("file:/nonexistent/keys")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}

// keysFile writes API keys to a file and returns it as a source of keys. Unlike a variable, tests that run at once can
// have one each.
func keysFile(t *testing.T, keys string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file:" + path
}

// keysFrom returns the configuration of a balancer with a source of keys.
func keysFrom(source string) service.BalancerConfig {
	return service.BalancerConfig{Balancer: service.BalancerSpec{Auth: &service.Auth{KeysFrom: source}}}
}

// A key with a budget could use no model.
func TestKeyBudgetRequiresPrice(t *testing.T) {
	t.Setenv("KEYS_OF_TEST", "sk-1 name=free\nsk-2 name=acme usd_per_day=5")
	cfg := keysFrom("env:KEYS_OF_TEST")
	if _, err := apiKeys(cfg); err != nil {
		t.Errorf("the models are discovered: %v", err)
	}
	cfg.Models = []service.BalancerModel{{Name: "m"}, {Name: "n"}}
	if _, err := apiKeys(cfg); err == nil || err.Error() != `balancer.auth.keys_from: the key "acme" has a budget in USD, and no model has a price` {
		t.Errorf("got %v", err)
	}
	cfg.Models[1].Price = &service.Price{Input: 1, Output: 1}
	if _, err := apiKeys(cfg); err != nil {
		t.Errorf("a model has a price: %v", err)
	}
}

func TestInvalidAuthIsRejected(t *testing.T) {
	for want, cfg := range map[string]service.BalancerConfig{
		"balancer.auth.keys_from: is required": {Balancer: service.BalancerSpec{Auth: &service.Auth{}}},
		"balancer.auth.tenants.acme: requests_per_day: must be at least 1, got -1": {Balancer: service.BalancerSpec{Auth: &service.Auth{
			KeysFrom: "env:K", Tenants: map[string]service.KeyLimits{"acme": {RequestsPerDay: -1}},
		}}},
		"balancer.auth.oidc[0].roles[0].limits: usd_per_day: must be greater than 0, got -2": {Balancer: service.BalancerSpec{Auth: &service.Auth{
			OIDC: []service.OIDC{{Issuer: "https://a.b", Audience: "c", RoleClaim: "r", Roles: []service.OIDCRole{{Name: "x", Limits: service.KeyLimits{USDPerDay: -2}}}}},
		}}},
		"models[0].price: is required: balancer.auth.limits is a budget in USD": {
			Balancer: service.BalancerSpec{Auth: &service.Auth{KeysFrom: "env:K", Limits: service.KeyLimits{USDPerMonth: 2}}}, Models: []service.BalancerModel{{Name: "m"}},
		},
		`balancer.auth.oidc[0].issuer: must be an https URL such as https://login.example.com, or http on this machine, without user, query or fragment, got "login"`: {
			Balancer: service.BalancerSpec{Auth: &service.Auth{OIDC: []service.OIDC{{Issuer: "login", Audience: "c"}}}},
		},
		`balancer.auth.oidc[0].max_tier: must be one of IW-F, IW-N, NIW, got "fast"`: {
			Balancer: service.BalancerSpec{Auth: &service.Auth{OIDC: []service.OIDC{{Issuer: "https://a.b", Audience: "c", MaxTier: "fast"}}}},
		},
		"models[0].price: output: must be at least 0, got -1": {Models: []service.BalancerModel{{Name: "m", Price: &service.Price{Output: -1}}}},
	} {
		cfg.ID, cfg.Region, cfg.Listen, cfg.Admin = "lb", "local/us", "127.0.0.1:0", "127.0.0.1:0"
		if err := CheckConfig(cfg, Options{}); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
