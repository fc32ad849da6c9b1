package lbd

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/lbd/admin"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// ConfigError is something in a balancer's configuration that it cannot run with.
type ConfigError struct {
	// Key is the place in the configuration: listen, replicas[2].url.
	Key string
	// Problem says what is wrong, with the value that was found.
	Problem string
	// Hint says what to do about it; may be empty.
	Hint string
}

// Error is the place and the problem.
func (e *ConfigError) Error() string { return e.Key + ": " + e.Problem }

// Check says whether a balancer can run with cfg; every error is a *ConfigError.
// What is open to other machines must ask who they are: the public listener by
// API keys (unless opts.InsecureNoAuth), the admin listener by a token.
func Check(cfg service.BalancerConfig, opts Options) error {
	for _, check := range []func() error{
		func() error { return checkNames(cfg) },
		func() error { return checkListeners(cfg, opts) },
		func() error { return checkTargets(cfg) },
		func() error { _, err := coreConfig(cfg); return err },
		func() error { return checkTLS(cfg.Balancer.TLS) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func checkNames(cfg service.BalancerConfig) error {
	if cfg.ID == "" {
		return &ConfigError{Key: "id", Problem: "missing"}
	}
	if cfg.Region == "" {
		return &ConfigError{Key: "region", Problem: "missing"}
	}
	for i, m := range cfg.Models {
		if m.Name == "" {
			return &ConfigError{Key: fmt.Sprintf("models[%d].name", i), Problem: "missing"}
		}
	}
	return nil
}

// asksForKeys says whether clients must present an API key.
func asksForKeys(cfg service.BalancerConfig) bool {
	return cfg.Balancer.Auth != nil && cfg.Balancer.Auth.KeysFrom != ""
}

func checkListeners(cfg service.BalancerConfig, opts Options) error {
	for _, l := range []struct{ key, addr string }{{"listen", cfg.Listen}, {"admin", cfg.Admin}} {
		if _, port, err := net.SplitHostPort(l.addr); err != nil || port == "" {
			return &ConfigError{Key: l.key, Problem: fmt.Sprintf("must be HOST:PORT, got %q", l.addr)}
		}
	}
	if !asksForKeys(cfg) && !opts.InsecureNoAuth && admin.BeyondLoopback(cfg.Listen) {
		return &ConfigError{
			Key: "listen", Problem: fmt.Sprintf("%s can be reached from other machines, and no API keys are set", cfg.Listen),
			Hint: "set balancer.auth.keys_from (--keys-from env:NAME or file:PATH), listen on 127.0.0.1, or accept everybody with --insecure-no-auth",
		}
	}
	if opts.AdminToken == "" && admin.BeyondLoopback(cfg.Admin) {
		return &ConfigError{
			Key: "admin", Problem: fmt.Sprintf("%s can be reached from other machines, and no admin token is set", cfg.Admin),
			Hint: "set SKYSERVE_ADMIN_TOKEN, or listen on 127.0.0.1",
		}
	}
	return nil
}

// checkTargets makes sure that every replica and peer has a URL and an id of its own.
func checkTargets(cfg service.BalancerConfig) error {
	if len(cfg.Peers) > 0 && cfg.PeerToken == "" && asksForKeys(cfg) {
		return &ConfigError{
			Key: "peer_token", Problem: "missing: clients must present keys, so peers must be told from them",
			Hint: "set peer_token (the environment variable SKYSERVE_PEER_TOKEN), the same for all balancers of the service",
		}
	}
	seen := map[string]string{cfg.ID: "id"}
	for i, r := range cfg.Replicas {
		key := fmt.Sprintf("replicas[%d]", i)
		if _, err := admin.ReplicaURL(r.URL); err != nil {
			return &ConfigError{Key: key + ".url", Problem: strings.TrimPrefix(err.Error(), "url: ")}
		}
		if r.DataParallel < 0 || r.DataParallel > service.MaxDataParallel {
			return &ConfigError{Key: key + ".data_parallel", Problem: fmt.Sprintf("must be from 0 to %d, got %d", service.MaxDataParallel, r.DataParallel)}
		}
		if err := claim(seen, key, replicaID(r)); err != nil {
			return err
		}
	}
	for i, p := range cfg.Peers {
		key := fmt.Sprintf("peers[%d]", i)
		if _, err := admin.ReplicaURL(p.URL); err != nil {
			return &ConfigError{Key: key + ".url", Problem: strings.TrimPrefix(err.Error(), "url: ")}
		}
		if p.ID == "" {
			return &ConfigError{Key: key + ".id", Problem: "missing"}
		}
		if p.EmulateRTT < 0 {
			return &ConfigError{Key: key + ".emulate_rtt", Problem: fmt.Sprintf("must not be below zero, got %s", p.EmulateRTT)}
		}
		if err := claim(seen, key, p.ID); err != nil {
			return err
		}
	}
	return nil
}

func claim(seen map[string]string, key, id string) error {
	if other, taken := seen[id]; taken {
		return &ConfigError{Key: key, Problem: fmt.Sprintf("has the id %q of %s", id, other), Hint: "give each an id of its own"}
	}
	seen[id] = key
	return nil
}

// replicaID is a replica's id, or the host of its URL where it has none.
func replicaID(r service.ReplicaConfig) string {
	if r.ID != "" {
		return r.ID
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return r.URL
	}
	return u.Host
}

// coreConfig is what the core needs of a service's balancer section and of its
// models' latency targets, with the defaults of what they leave out.
func coreConfig(cfg service.BalancerConfig) (core.Config, error) {
	b := cfg.Balancer.WithDefaults()
	if err := service.CheckWord("BalancerSpec.order", b.Order); err != nil {
		return core.Config{}, &ConfigError{Key: "balancer.order", Problem: err.Error()}
	}
	if err := service.CheckWord("BalancerSpec.policy", b.Policy); err != nil {
		return core.Config{}, &ConfigError{Key: "balancer.policy", Problem: err.Error()}
	}
	p, err := policy.New(b.Policy)
	if err != nil {
		return core.Config{}, &ConfigError{Key: "balancer.policy", Problem: err.Error()}
	}
	c := core.DefaultConfig(p)
	if c.Push, err = core.ParsePush(b.Push); err != nil {
		return core.Config{}, &ConfigError{Key: "balancer.push", Problem: err.Error()}
	}
	if c.Order, err = core.ParseOrder(b.Order); err != nil {
		return core.Config{}, &ConfigError{Key: "balancer.order", Problem: err.Error()}
	}
	if b.TauN < 0 || b.TauP < 0 {
		return core.Config{}, &ConfigError{Key: "balancer", Problem: fmt.Sprintf("tau_n and tau_p must not be below zero, got %s and %s", b.TauN, b.TauP)}
	}
	if b.Tau < 0 || b.QueueLimit < 0 || b.MaxWait < 0 {
		return core.Config{}, &ConfigError{Key: "balancer", Problem: fmt.Sprintf("tau, queue_limit and max_wait must not be below zero, got %d, %d and %s", b.Tau, b.QueueLimit, b.MaxWait)}
	}
	c.Forward, c.Tau, c.QueueLimit, c.MaxWait = *b.Forward, b.Tau, b.QueueLimit, b.MaxWait
	c.TauN, c.TauP = b.TauN, b.TauP
	if b.MaxTries < 0 || b.RetryPercent < 0 || b.EjectAfter < 0 || b.EjectTime < 0 {
		return core.Config{}, &ConfigError{Key: "balancer", Problem: fmt.Sprintf("max_tries, retry_percent, eject_after and eject_time must not be below zero, got %d, %d, %d and %s", b.MaxTries, b.RetryPercent, b.EjectAfter, b.EjectTime)}
	}
	c.MaxTries, c.RetryShare = b.MaxTries, float64(b.RetryPercent)/100
	c.EjectAfter, c.EjectTime, c.EjectMost = b.EjectAfter, b.EjectTime, max(c.EjectMost, b.EjectTime)
	for i, m := range cfg.Models {
		t, err := targets(m.SLO)
		if err != nil {
			return core.Config{}, &ConfigError{Key: fmt.Sprintf("models[%d].slo", i), Problem: err.Error()}
		}
		if t == (core.Targets{}) {
			continue
		}
		if c.ModelTargets == nil {
			c.ModelTargets = map[string]core.Targets{}
		}
		c.ModelTargets[m.Name] = t
	}
	return c, nil
}

// targets is what a model's latency targets mean for the order of its queue;
// zero where they say nothing.
func targets(slo map[service.Tier]service.SLO) (core.Targets, error) {
	for tier := range slo {
		if !slices.Contains(service.Tiers(), tier) {
			return core.Targets{}, fmt.Errorf("has a tier that is not known, want one of %v", service.Tiers())
		}
	}
	t := core.Targets{
		Fast: slo[service.TierFast].TTFT, Normal: slo[service.TierNormal].TTFT, Deferred: slo[service.TierDeferred].Deadline,
	}
	if t.Fast < 0 || t.Normal < 0 || t.Deferred < 0 {
		return core.Targets{}, errors.New("must not hold a time below zero")
	}
	return t, nil
}

func checkTLS(t *service.TLS) error {
	switch {
	case t == nil:
		return nil
	case t.ACME != "":
		return &ConfigError{Key: "balancer.tls.acme", Problem: "is not built yet in this version", Hint: "give the files balancer.tls.cert and balancer.tls.key"}
	case t.Cert == "" || t.Key == "":
		return &ConfigError{Key: "balancer.tls", Problem: "needs both cert and key"}
	}
	return nil
}

// apiKeys reads the keys that clients must present, one a line; blank lines and
// those that begin with # are passed over. No key at all is an error: a service
// that means to ask for keys must not end up open.
func apiKeys(auth *service.Auth) ([]string, error) {
	if auth == nil || auth.KeysFrom == "" {
		return nil, nil
	}
	text, err := secretFrom(auth.KeysFrom)
	if err != nil {
		return nil, &ConfigError{Key: "balancer.auth.keys_from", Problem: err.Error()}
	}
	var keys []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}
	if len(keys) == 0 {
		return nil, &ConfigError{Key: "balancer.auth.keys_from", Problem: fmt.Sprintf("%s holds no key", auth.KeysFrom)}
	}
	return keys, nil
}

// maxSecret bounds a file of keys: some hundred thousand of them.
const maxSecret = 8 << 20

// secretFrom reads what env:NAME or file:PATH refers to.
func secretFrom(ref string) (string, error) {
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		text, set := os.LookupEnv(name)
		if !set {
			return "", fmt.Errorf("the environment has no %s", name)
		}
		return text, nil
	}
	path, ok := strings.CutPrefix(ref, "file:")
	if !ok {
		return "", errors.New("must be env:NAME or file:PATH") // the value found may be a key itself
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxSecret {
		return "", fmt.Errorf("%s is larger than %d bytes", path, maxSecret)
	}
	data, err := os.ReadFile(path)
	return string(data), err
}
