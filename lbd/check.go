package lbd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/lbd/admin"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/trace"
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

// problems is what is wrong with a configuration, all of it.
type problems []*ConfigError

func (p *problems) add(key, problem, hint string) {
	*p = append(*p, &ConfigError{Key: key, Problem: problem, Hint: hint})
}

// first is the first of them as an error; nil without any.
func (p problems) first() error {
	if len(p) == 0 {
		return nil
	}
	return p[0]
}

// Check says whether a balancer can run with cfg; every error is a *ConfigError.
// What is open to other machines must ask who they are: the public listener by
// API keys (unless opts.InsecureNoAuth), the admin listener by a token.
func Check(cfg service.BalancerConfig, opts Options) error { return checkAll(cfg, opts).first() }

// checkAll is Check with all that is wrong.
func checkAll(cfg service.BalancerConfig, opts Options) problems {
	var p problems
	checkNames(&p, cfg)
	checkListeners(&p, cfg, opts)
	checkTargets(&p, cfg)
	checkIdentity(&p, cfg)
	_ = coreOf(&p, cfg)
	checkTLS(&p, cfg.Balancer.TLS)
	checkACME(&p, cfg, opts)
	checkTraces(&p, cfg.Balancer.Traces)
	checkAuth(&p, cfg.Balancer.Auth)
	for _, misfit := range cfg.Balancer.WithDefaults().Memory.Misfits() {
		p.add("balancer.memory."+misfit.Key, misfit.Problem, "")
	}
	return p
}

func checkNames(p *problems, cfg service.BalancerConfig) {
	if cfg.ID == "" {
		p.add("id", "missing", "")
	}
	if cfg.Region == "" {
		p.add("region", "missing", "")
	}
	for i, m := range cfg.Models {
		if m.Name == "" {
			p.add(fmt.Sprintf("models[%d].name", i), "missing", "")
		}
	}
}

// asksForKeys says whether clients must present an API key.
func asksForKeys(cfg service.BalancerConfig) bool {
	return cfg.Balancer.Auth != nil && cfg.Balancer.Auth.KeysFrom != ""
}

func checkListeners(p *problems, cfg service.BalancerConfig, opts Options) {
	bad := false
	for _, l := range []struct{ key, addr string }{{"listen", cfg.Listen}, {"admin", cfg.Admin}} {
		if _, port, err := net.SplitHostPort(l.addr); err != nil || port == "" {
			p.add(l.key, fmt.Sprintf("must be HOST:PORT, got %q", l.addr), "")
			bad = true
		}
	}
	if bad {
		return
	}
	if !asksForKeys(cfg) && !opts.InsecureNoAuth && admin.BeyondLoopback(cfg.Listen) {
		p.add("listen", fmt.Sprintf("%s can be reached from other machines, and no API keys are set", cfg.Listen),
			"set balancer.auth.keys_from (--keys-from env:NAME or file:PATH), listen on 127.0.0.1, or accept everybody with --insecure-no-auth")
	}
	if opts.AdminToken == "" && cfg.Identity == nil && admin.BeyondLoopback(cfg.Admin) {
		p.add("admin", fmt.Sprintf("%s can be reached from other machines, and no admin token is set", cfg.Admin),
			"set SKYSERVE_ADMIN_TOKEN, give the balancer an identity, or listen on 127.0.0.1")
	}
}

// checkTargets makes sure that every replica and peer has a URL and an id of its own.
func checkTargets(p *problems, cfg service.BalancerConfig) {
	if len(cfg.Peers) > 0 && cfg.PeerToken == "" && cfg.Identity == nil && asksForKeys(cfg) {
		p.add("peer_token", "missing: clients must present keys, so peers must be told from them",
			"set peer_token (the environment variable SKYSERVE_PEER_TOKEN), the same for all balancers of the service")
	}
	seen := map[string]string{cfg.ID: "id"}
	for i, r := range cfg.Replicas {
		key := fmt.Sprintf("replicas[%d]", i)
		checkURL(p, key, r.URL)
		if r.DataParallel < 0 || r.DataParallel > service.MaxDataParallel {
			p.add(key+".data_parallel", fmt.Sprintf("must be from 0 to %d, got %d", service.MaxDataParallel, r.DataParallel), "")
		}
		claim(p, seen, key, replicaID(r))
	}
	for i, peer := range cfg.Peers {
		key := fmt.Sprintf("peers[%d]", i)
		checkURL(p, key, peer.URL)
		if peer.EmulateRTT < 0 {
			p.add(key+".emulate_rtt", fmt.Sprintf("must not be below zero, got %s", peer.EmulateRTT), "")
		}
		if peer.ID == "" {
			p.add(key+".id", "missing", "")
			continue
		}
		claim(p, seen, key, peer.ID)
	}
}

func checkURL(p *problems, key, raw string) {
	if _, err := admin.ReplicaURL(raw); err != nil {
		p.add(key+".url", strings.TrimPrefix(err.Error(), "url: "), "")
	}
}

func claim(p *problems, seen map[string]string, key, id string) {
	if other, taken := seen[id]; taken {
		p.add(key, fmt.Sprintf("has the id %q of %s", id, other), "give each an id of its own")
		return
	}
	seen[id] = key
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

// deferredStep is how much less memory must be used for two deferred requests to go, in
// percent (SageServe section 6.2: 60 and 50).
const deferredStep = 10

// coreConfig is what the core needs of a service's balancer section and of its
// models' latency targets, with the defaults of what they leave out.
func coreConfig(cfg service.BalancerConfig) (core.Config, error) {
	var p problems
	c := coreOf(&p, cfg)
	return c, p.first()
}

// coreOf is coreConfig with all that is wrong; with a problem it is not usable.
func coreOf(p *problems, cfg service.BalancerConfig) core.Config {
	b := cfg.Balancer.WithDefaults()
	fail := func(key string, err error) {
		if err != nil {
			p.add(key, err.Error(), "")
		}
	}
	err := service.CheckWord("BalancerSpec.order", b.Order)
	fail("balancer.order", err)
	var order core.Order
	if err == nil {
		order, err = core.ParseOrder(b.Order)
		fail("balancer.order", err)
	}
	c := core.DefaultConfig(choosePolicy(p, b.Policy))
	c.Order = order
	c.Push, err = core.ParsePush(b.Push)
	fail("balancer.push", err)
	if b.TauN < 0 || b.TauP < 0 {
		p.add("balancer", fmt.Sprintf("tau_n and tau_p must not be below zero, got %s and %s", b.TauN, b.TauP), "")
	}
	if b.Tau < 0 || b.QueueLimit < 0 || b.MaxWait < 0 {
		p.add("balancer", fmt.Sprintf("tau, queue_limit and max_wait must not be below zero, got %d, %d and %s", b.Tau, b.QueueLimit, b.MaxWait), "")
	}
	c.Forward, c.Tau, c.QueueLimit, c.MaxWait = *b.Forward, b.Tau, b.QueueLimit, b.MaxWait
	c.TauN, c.TauP = b.TauN, b.TauP
	if b.DeferredMemoryPercent <= deferredStep || b.DeferredMemoryPercent > 100 || b.DeferredWaitPercent < 1 || b.DeferredWaitPercent > 100 {
		p.add("balancer", fmt.Sprintf("deferred_memory_percent must be from %d to 100 and deferred_wait_percent from 1 to 100, got %d and %d", deferredStep+1, b.DeferredMemoryPercent, b.DeferredWaitPercent), "")
	}
	c.Deferred = core.DeferredRule{}
	if *b.HoldDeferred {
		c.Deferred = core.DeferredRule{
			OneBelow: float64(b.DeferredMemoryPercent) / 100, TwoBelow: float64(b.DeferredMemoryPercent-deferredStep) / 100, Wait: float64(b.DeferredWaitPercent) / 100,
		}
	}
	if b.MaxTries < 0 || b.RetryPercent < 0 || b.EjectAfter < 0 || b.EjectTime < 0 {
		p.add("balancer", fmt.Sprintf("max_tries, retry_percent, eject_after and eject_time must not be below zero, got %d, %d, %d and %s", b.MaxTries, b.RetryPercent, b.EjectAfter, b.EjectTime), "")
	}
	for _, name := range b.AllowParameters {
		fail("balancer.allow_parameters", service.CheckWord("BalancerSpec.allow_parameters", name))
	}
	c.MaxTries, c.RetryShare = b.MaxTries, float64(b.RetryPercent)/100
	c.EjectAfter, c.EjectTime, c.EjectMax = b.EjectAfter, b.EjectTime, max(c.EjectMax, b.EjectTime)
	for i, m := range cfg.Models {
		t, err := targets(m.SLO)
		fail(fmt.Sprintf("models[%d].slo", i), err)
		if t == (core.Targets{}) {
			continue
		}
		if c.ModelTargets == nil {
			c.ModelTargets = map[string]core.Targets{}
		}
		c.ModelTargets[m.Name] = t
	}
	return c
}

// choosePolicy is the policy of that name; nil where it is not to be had.
func choosePolicy(p *problems, name string) policy.Policy {
	err := service.CheckWord("BalancerSpec.policy", name)
	if err == nil {
		var chosen policy.Policy
		if chosen, err = policy.New(name); err == nil {
			return chosen
		}
	}
	p.add("balancer.policy", err.Error(), "")
	return nil
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

func checkTLS(p *problems, t *service.TLS) {
	switch {
	case t == nil, t.ACME != nil:
	case t.Cert == "" || t.Key == "":
		p.add("balancer.tls", "needs both cert and key", "")
	}
}

// checkTraces makes sure that traces can be sent where the configuration, or else
// the environment, says.
func checkTraces(p *problems, base string) {
	if _, source, err := trace.Endpoint(base); err != nil {
		p.add(cmp.Or(source, "balancer.traces"), err.Error(), "")
	}
}

func checkAuth(p *problems, a *service.Auth) {
	if a == nil {
		return
	}
	if err := a.Limits.Check(); err != nil {
		p.add("balancer.auth.limits", err.Error(), "")
	}
	if a.KeysFrom == "" && a.Limits != (service.KeyLimits{}) {
		p.add("balancer.auth.limits", "are those of keys, and no keys are asked for", "set balancer.auth.keys_from")
	}
}

// apiKeys reads the keys that clients must present, as service.ParseKeys does.
// No key at all is an error: a service that means to ask for keys must not end up
// open.
func apiKeys(auth *service.Auth) ([]service.APIKey, error) {
	if auth == nil || auth.KeysFrom == "" {
		return nil, nil
	}
	text, err := secretFrom(auth.KeysFrom)
	if err != nil {
		return nil, &ConfigError{Key: "balancer.auth.keys_from", Problem: err.Error()}
	}
	keys, err := service.ParseKeys(text, auth.Limits)
	if err != nil {
		return nil, &ConfigError{Key: "balancer.auth.keys_from", Problem: fmt.Sprintf("reading %s: %v", auth.KeysFrom, err)}
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
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(data) > maxSecret {
		return "", fmt.Errorf("%s is larger than %d bytes", path, maxSecret)
	}
	return string(data), err
}
