package lbd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/lbd/admin"
	"skyserve/lbd/core"
	"skyserve/lbd/discover"
	"skyserve/lbd/policy"
	"skyserve/lbd/trace"
)

// ConfigError is an error in a balancer's configuration.
type ConfigError struct {
	// Key is the path in the configuration: listen, replicas[2].url.
	Key string
	// Problem describes the error, with the invalid value.
	Problem string
	// Hint is the suggested fix; may be empty.
	Hint string
}

// Error returns the key and the problem.
func (e *ConfigError) Error() string { return e.Key + ": " + e.Problem }

// problems are all errors in a configuration.
type problems []*ConfigError

func (p *problems) addProblem(key, problem, hint string) {
	*p = append(*p, &ConfigError{Key: key, Problem: problem, Hint: hint})
}

// first returns the first problem as an error; nil if there is none.
func (p problems) first() error {
	if len(p) == 0 {
		return nil
	}
	return p[0]
}

// CheckConfig reports whether a balancer can run with cfg. Every error is a *ConfigError. A listener that is
// reachable from other machines must authenticate them: the public listener by API keys or identity tokens
// (unless opts.InsecureNoAuth is set), the admin listener by a token or certificates.
func CheckConfig(cfg service.BalancerConfig, opts Options) error { return checkAll(cfg, opts).first() }

// checkAll returns all problems that CheckConfig checks.
func checkAll(cfg service.BalancerConfig, opts Options) problems {
	var p problems
	checkNames(&p, cfg)
	checkListeners(&p, cfg, opts)
	checkTargets(&p, cfg)
	checkProviders(&p, cfg)
	checkSplits(&p, cfg)
	checkIdentity(&p, cfg)
	_ = buildCoreConfig(&p, cfg)
	checkTLS(&p, cfg.Balancer.TLS)
	checkACME(&p, cfg, opts)
	checkTraces(&p, cfg.Balancer.Traces)
	checkAuth(&p, cfg)
	checkCORS(&p, cfg.Balancer.CORS)
	for i, m := range cfg.Models {
		if err := m.Price.Check(); err != nil {
			p.addProblem(fmt.Sprintf("models[%d].price", i), err.Error(), "")
		}
	}
	for _, problem := range cfg.Balancer.WithDefaults().Memory.Conflicts() {
		p.addProblem("balancer.memory."+problem.Key, problem.Problem, "")
	}
	return p
}

func checkNames(p *problems, cfg service.BalancerConfig) {
	if cfg.ID == "" {
		p.addProblem("id", "is required", "")
	}
	if cfg.Region == "" {
		p.addProblem("region", "is required", "")
	}
	for i, m := range cfg.Models {
		if m.Name == "" {
			p.addProblem(fmt.Sprintf("models[%d].name", i), "is required", "")
		}
	}
	checkAdapters(p, cfg.Models)
}

// checkAdapters rejects adapters that have the name of a model, of an alias or of another adapter: requests
// with that name would not use the adapter. It also rejects adapters of an alias.
func checkAdapters(p *problems, models []service.BalancerModel) {
	use, aliasOf := map[string]string{}, map[string]string{}
	for _, m := range models {
		for _, alias := range m.Aliases {
			use[alias], aliasOf[alias] = fmt.Sprintf("an alias of model %q", m.Name), m.Name
		}
	}
	for _, m := range models {
		use[m.Name] = "a model"
	}
	for i, m := range models {
		if of := aliasOf[m.Name]; len(m.LoRA) > 0 && of != "" {
			p.addProblem(fmt.Sprintf("models[%d].lora", i), fmt.Sprintf("%q is an alias of model %q", m.Name, of), fmt.Sprintf("set the adapters of model %q", of))
		}
		for j, adapter := range m.LoRA {
			if other, used := use[adapter]; used {
				p.addProblem(fmt.Sprintf("models[%d].lora[%d]", i, j), fmt.Sprintf("adapter %q of model %q: this name is already used by %s", adapter, m.Name, other),
					"use a unique name; --lora is NAME=ADAPTER, the model first")
			}
			use[adapter] = fmt.Sprintf("an adapter of model %q", m.Name)
		}
	}
}

// requiresKeys reports whether clients must present an API key or an identity token. cfg is a pointer because a copy
// would be in the stack frame of handler, below each stream, whose stack would then take 16 instead of 8 KB.
func requiresKeys(cfg *service.BalancerConfig) bool {
	return cfg.Balancer.Auth.Required()
}

func checkListeners(p *problems, cfg service.BalancerConfig, opts Options) {
	bad := false
	for _, l := range []struct{ key, addr string }{{"listen", cfg.Listen}, {"admin", cfg.Admin}} {
		if _, port, err := net.SplitHostPort(l.addr); err != nil || port == "" {
			p.addProblem(l.key, fmt.Sprintf("must be HOST:PORT, got %q", l.addr), "")
			bad = true
		}
	}
	if bad {
		return
	}
	if !requiresKeys(&cfg) && !opts.InsecureNoAuth && admin.BeyondLoopback(cfg.Listen) {
		p.addProblem("listen", fmt.Sprintf("%s is reachable from other machines, and no API keys are set", cfg.Listen),
			"pass --keys-from env:NAME or file:PATH (in the file of --config: balancer.auth.keys_from), listen on 127.0.0.1, or disable authentication with --insecure-no-auth")
	}
	if opts.AdminToken == "" && cfg.Identity == nil && admin.BeyondLoopback(cfg.Admin) {
		p.addProblem("admin", fmt.Sprintf("%s is reachable from other machines, and no admin token is set", cfg.Admin),
			"set SKYSERVE_ADMIN_TOKEN, set identity (a certificate of the service) in the file of --config, or listen on 127.0.0.1")
	}
}

// checkTargets checks that every replica and peer has a URL and a unique id.
func checkTargets(p *problems, cfg service.BalancerConfig) {
	checkPeerToken(p, cfg)
	checkReplicasFile(p, cfg.ReplicasFile)
	seen, names, seenNames := map[string]string{cfg.ID: "id"}, map[string]string{}, map[string]string{}
	for i, r := range cfg.Replicas {
		key := fmt.Sprintf("replicas[%d]", i)
		checkReplica(p, key, r)
		ids := seen
		if discover.IsName(r.URL) {
			claimName(p, names, key, r.URL)
			ids = seenNames // the ids of resolved replicas contain their addresses
		}
		checkCacheEvents(p, key, r)
		if r.DataParallel < 0 || r.DataParallel > service.MaxDataParallel {
			p.addProblem(key+".data_parallel", fmt.Sprintf("must be from 0 to %d, got %d", service.MaxDataParallel, r.DataParallel), "")
		}
		claimID(p, ids, key, replicaID(r))
	}
	for i, peer := range cfg.Peers {
		key := fmt.Sprintf("peers[%d]", i)
		checkURL(p, key, peer.URL)
		if peer.EmulateRTT < 0 {
			p.addProblem(key+".emulate_rtt", fmt.Sprintf("must be at least 0, got %s", peer.EmulateRTT), "")
		}
		if peer.ID == "" {
			p.addProblem(key+".id", "is required", "")
			continue
		}
		claimID(p, seen, key, peer.ID)
	}
}

// checkPeerToken checks that there is a peer token if peers could not connect without it. A certificate does not
// replace it.
func checkPeerToken(p *problems, cfg service.BalancerConfig) {
	if len(cfg.Peers) == 0 || cfg.PeerToken != "" {
		return
	}
	const next = "set the environment variable SKYSERVE_PEER_TOKEN (or peer_token in the file of --config) to a secret of your own, the same for all balancers of the service"
	switch {
	case requiresKeys(&cfg):
		p.addProblem("peer_token", "is required: SKYSERVE_PEER_TOKEN distinguishes peers from clients, which must present keys", next)
	case slices.ContainsFunc(cfg.Peers, onOtherMachine):
		p.addProblem("peer_token", "is required: without SKYSERVE_PEER_TOKEN a balancer accepts only peers on its own machine", next)
	}
}

// onOtherMachine reports whether connections from a peer do not come from a loopback address. It is false for an
// invalid URL, which is a problem of its own.
func onOtherMachine(peer service.PeerConfig) bool {
	u, err := url.Parse(peer.URL)
	return err == nil && u.Hostname() != "" && admin.BeyondLoopback(net.JoinHostPort(u.Hostname(), "0")) // the port may be omitted
}

// checkReplica checks the URL of a replica, which may be a DNS name.
func checkReplica(p *problems, key string, r service.ReplicaConfig) {
	if err := discover.CheckURL(r.URL, checkReplicaURL); err != nil {
		p.addProblem(key+".url", strings.TrimPrefix(err.Error(), "url: "), "")
	}
}

// checkReplicasFile checks that the file of replicas can be read now.
func checkReplicasFile(p *problems, path string) {
	if path == "" {
		return
	}
	if _, err := discover.ReadFile(path, checkReplicaURL); err != nil {
		p.addProblem("replicas_file", fmt.Sprintf("reading %s: %v", path, err), hintOfReplicasFile(path, err))
	}
}

// hintOfReplicasFile returns the fix of an error of the file of replicas; may be empty.
func hintOfReplicasFile(path string, err error) string {
	var le *discover.LineError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "create the file with one URL per line; without replicas, it contains []"
	case !errors.As(err, &le):
		return ""
	case le.NextStep != "" || le.Line == 0:
		return le.NextStep
	}
	return fmt.Sprintf("correct line %d of %s", le.Line, path)
}

func checkURL(p *problems, key, raw string) {
	if _, err := admin.ReplicaURL(raw); err != nil {
		p.addProblem(key+".url", strings.TrimPrefix(err.Error(), "url: "), "")
	}
}

func claimID(p *problems, seen map[string]string, key, id string) {
	if other, taken := seen[id]; taken {
		p.addProblem(key, fmt.Sprintf("id %q is already used by %s", id, other), "use unique ids")
		return
	}
	seen[id] = key
}

// claimName rejects a DNS name that is listed twice: its replicas would have the settings of one of the two.
func claimName(p *problems, names map[string]string, key, url string) {
	base := service.BaseURL(url)
	if other, taken := names[base]; taken {
		p.addProblem(key+".url", fmt.Sprintf("%s is already listed by %s", url, other), "list each DNS name once")
		return
	}
	names[base] = key
}

// replicaID returns a replica's id, or the host of its URL if it has none.
func replicaID(r service.ReplicaConfig) string { return discover.ReplicaID(r) }

// deferredStep is the difference in memory use between releasing one and two deferred requests, in
// percent (SageServe section 6.2: 60 and 50).
const deferredStep = 10

// coreConfig returns core's configuration from a service's balancer section and its models' latency
// targets, with defaults.
func coreConfig(cfg service.BalancerConfig) (core.Config, error) {
	var p problems
	c := buildCoreConfig(&p, cfg)
	return c, p.first()
}

// buildCoreConfig is coreConfig with all problems. If it adds one, the result is not usable.
func buildCoreConfig(p *problems, cfg service.BalancerConfig) core.Config {
	b := cfg.Balancer.WithDefaults()
	fail := func(key string, err error) {
		if err != nil {
			p.addProblem(key, err.Error(), "")
		}
	}
	err := service.CheckValue("BalancerSpec.order", b.Order)
	fail("balancer.order", err)
	var order core.QueueOrder
	if err == nil {
		order, err = core.ParseOrder(b.Order)
		fail("balancer.order", err)
	}
	c := core.DefaultConfig(choosePolicy(p, b.Policy))
	c.Order = order
	c.Push, err = core.ParsePush(b.Push)
	fail("balancer.push", err)
	checkNumbers(p, b)
	c.Forward, c.PeerQueueLimit, c.QueueLimit, c.MaxWait = *b.Forward, b.PeerQueueLimit, b.QueueLimit, b.MaxWait
	c.ScaleToZero, c.MaxColdWait = modelsToZero(cfg.Models), b.MaxColdWait
	c.SevereAfter, c.UrgentBefore = b.SevereAfter, b.UrgentBefore
	c.Deferred = core.DeferredRule{}
	if *b.HoldDeferred {
		c.Deferred = core.DeferredRule{
			ReleaseOneBelow: float64(b.DeferredMemoryPercent) / 100, ReleaseTwoBelow: float64(b.DeferredMemoryPercent-deferredStep) / 100, MaxParkedShare: float64(b.DeferredWaitPercent) / 100, MaxPerReplica: core.DefaultDeferredPerReplica,
		}
	}
	for _, name := range b.AllowParameters {
		fail("balancer.allow_parameters", service.CheckValue("BalancerSpec.allow_parameters", name))
	}
	c.MaxAttempts, c.RetryShare = b.MaxTries, float64(b.RetryPercent)/100
	c.EjectAfter, c.EjectTime, c.MaxEjectTime = b.EjectAfter, b.EjectTime, max(c.MaxEjectTime, b.EjectTime)
	for i, m := range cfg.Models {
		t, err := deadlines(m.SLO)
		fail(fmt.Sprintf("models[%d].slo", i), err)
		if t == (core.TierDeadlines{}) {
			continue
		}
		if c.ModelDeadlines == nil {
			c.ModelDeadlines = map[string]core.TierDeadlines{}
		}
		c.ModelDeadlines[m.Name] = t
	}
	return c
}

// checkNumbers checks the ranges of the numbers and times of the balancer section.
func checkNumbers(p *problems, b service.BalancerSpec) {
	notNegative := func(key string, negative bool, got any) {
		if negative {
			p.addProblem("balancer."+key, fmt.Sprintf("must be at least 0, got %v", got), "")
		}
	}
	percent := func(key string, got, lowest int) {
		if got < lowest || got > 100 {
			p.addProblem("balancer."+key, fmt.Sprintf("must be from %d to 100, got %d", lowest, got), "")
		}
	}
	notNegative("dpa_severe_after", b.SevereAfter < 0, b.SevereAfter)
	notNegative("dpa_urgent_before", b.UrgentBefore < 0, b.UrgentBefore)
	notNegative("peer_queue_limit", b.PeerQueueLimit < 0, b.PeerQueueLimit)
	notNegative("queue_limit", b.QueueLimit < 0, b.QueueLimit)
	notNegative("max_wait", b.MaxWait < 0, b.MaxWait)
	notNegative("max_cold_wait", b.MaxColdWait < 0, b.MaxColdWait)
	percent("deferred_memory_percent", b.DeferredMemoryPercent, deferredStep+1)
	percent("deferred_wait_percent", b.DeferredWaitPercent, 1)
	notNegative("max_tries", b.MaxTries < 0, b.MaxTries)
	notNegative("retry_percent", b.RetryPercent < 0, b.RetryPercent)
	notNegative("eject_after", b.EjectAfter < 0, b.EjectAfter)
	notNegative("eject_time", b.EjectTime < 0, b.EjectTime)
}

// modelsToZero returns the models that scale to zero; nil where none does.
func modelsToZero(models []service.BalancerModel) map[string]bool {
	var all map[string]bool
	for _, m := range models {
		if m.ScaleToZero && all == nil {
			all = map[string]bool{}
		}
		if m.ScaleToZero {
			all[m.Name] = true
		}
	}
	return all
}

// choosePolicy returns the policy with this name; nil if there is none.
func choosePolicy(p *problems, name string) policy.Policy {
	err := service.CheckValue("BalancerSpec.policy", name)
	if err == nil {
		var chosen policy.Policy
		if chosen, err = policy.New(name); err == nil {
			return chosen
		}
	}
	p.addProblem("balancer.policy", err.Error(), "")
	return nil
}

// deadlines converts a model's latency targets to the deadlines of its queue; zero if none are set.
func deadlines(slo map[service.Tier]service.SLO) (core.TierDeadlines, error) {
	for tier := range slo {
		if !slices.Contains(service.Tiers(), tier) {
			return core.TierDeadlines{}, fmt.Errorf("unknown tier %q: must be one of %v", tier, service.Tiers())
		}
	}
	t := core.TierDeadlines{
		Fast: slo[service.TierFast].TTFT, Normal: slo[service.TierNormal].TTFT, Deferred: slo[service.TierDeferred].Deadline,
	}
	if t.Fast < 0 || t.Normal < 0 || t.Deferred < 0 {
		return core.TierDeadlines{}, errors.New("times must be at least 0")
	}
	return t, nil
}

func checkTLS(p *problems, t *service.TLS) {
	switch {
	case t == nil, t.ACME != nil:
	case t.Cert == "" || t.Key == "":
		p.addProblem("balancer.tls", "requires both cert and key", "")
	}
}

// checkTraces checks the trace endpoint from the configuration or the environment.
func checkTraces(p *problems, base string) {
	if _, source, err := trace.Endpoint(base); err != nil {
		p.addProblem(cmp.Or(source, "balancer.traces"), err.Error(), "")
	}
}

func checkCORS(p *problems, c *service.CORS) {
	if c == nil {
		return
	}
	if err := c.Check(); err != nil {
		p.addProblem("balancer.cors", err.Error(), "")
	}
}

func checkAuth(p *problems, cfg service.BalancerConfig) {
	a := cfg.Balancer.Auth
	if a == nil {
		return
	}
	for _, conflict := range a.Conflicts() {
		p.addProblem("balancer.auth."+conflict.Key, conflict.Problem, conflict.Suggestion)
	}
	checkLimits(p, a)
	budget := a.Budget()
	for i, m := range cfg.Models {
		if m.Price == nil && budget != "" {
			p.addProblem(fmt.Sprintf("models[%d].price", i), fmt.Sprintf("is required: balancer.auth.%s is a budget in USD", budget), "set the price in USD per million tokens")
		}
	}
}

// checkLimits checks all limits of keys, users and tenants.
func checkLimits(p *problems, a *service.Auth) {
	check := func(key string, l service.KeyLimits) {
		if err := l.Check(); err != nil {
			p.addProblem("balancer.auth."+key, err.Error(), "")
		}
	}
	check("limits", a.Limits)
	for _, tenant := range slices.Sorted(maps.Keys(a.Tenants)) {
		check("tenants."+tenant, a.Tenants[tenant])
	}
	for i, o := range a.OIDC {
		check(fmt.Sprintf("oidc[%d].limits", i), o.Limits)
		for j, r := range o.Roles {
			check(fmt.Sprintf("oidc[%d].roles[%d].limits", i, j), r.Limits)
		}
	}
}

// apiKeys reads the keys that clients must present.
func apiKeys(cfg service.BalancerConfig) ([]service.APIKey, error) {
	auth := cfg.Balancer.Auth
	if auth == nil || auth.KeysFrom == "" {
		return nil, nil
	}
	text, err := secretFrom(auth.KeysFrom)
	if err != nil {
		return nil, &ConfigError{Key: "balancer.auth.keys_from", Problem: err.Error()}
	}
	keys, err := auth.ReadKeys(text)
	if err != nil {
		return nil, &ConfigError{Key: "balancer.auth.keys_from", Problem: err.Error()}
	}
	if err := checkKeyBudgets(keys, cfg.Models); err != nil {
		return nil, err
	}
	return keys, nil
}

// checkKeyBudgets returns an error if a key has a budget in USD, and no model a price: then the key could not
// be used. Models may also be discovered, without a price; nothing is known about them here.
func checkKeyBudgets(keys []service.APIKey, models []service.BalancerModel) error {
	i := slices.IndexFunc(keys, func(k service.APIKey) bool { return k.Limits.HasBudget() })
	if i < 0 || len(models) == 0 || slices.ContainsFunc(models, func(m service.BalancerModel) bool { return m.Price != nil }) {
		return nil
	}
	return &ConfigError{
		Key: "balancer.auth.keys_from", Problem: fmt.Sprintf("the key %q has a budget in USD, and no model has a price", keys[i].Name),
		Hint: "set models[].price in USD per million tokens",
	}
}

// secretRefs returns the sources of the secrets of a configuration.
func secretRefs(cfg service.BalancerConfig) (refs []string) {
	if auth := cfg.Balancer.Auth; auth != nil {
		refs = append(refs, auth.KeysFrom)
	}
	if tls := cfg.Balancer.TLS; tls != nil && tls.ACME != nil && tls.ACME.EAB != nil {
		refs = append(refs, tls.ACME.EAB.HMAC)
	}
	for _, r := range cfg.Replicas {
		refs = append(refs, r.APIKey)
	}
	for _, k := range cfg.EngineKeys {
		refs = append(refs, k.APIKey)
	}
	for _, p := range cfg.Providers {
		refs = append(refs, p.APIKey)
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// warnOfReadableSecrets logs the files with secrets that other users can read.
func (b *balancer) warnOfReadableSecrets(cfg service.BalancerConfig) {
	for _, ref := range secretRefs(cfg) {
		path, isFile := strings.CutPrefix(ref, "file:")
		if !isFile {
			continue
		}
		if err := identity.CheckMode(path); err != nil {
			b.log.Warn("a file with a secret is not private", "err", err)
		}
	}
}

// maxSecret is the maximum size of a file of keys: several hundred thousand keys.
const maxSecret = 8 << 20

// secretFrom reads the value that env:NAME or file:PATH refers to.
func secretFrom(ref string) (string, error) {
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		text, set := os.LookupEnv(name)
		if !set {
			return "", fmt.Errorf("environment variable %s is not set", name)
		}
		return text, nil
	}
	path, ok := strings.CutPrefix(ref, "file:")
	if !ok {
		return "", errors.New("must be env:NAME or file:PATH") // the value may be a key
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(data) > maxSecret {
		return "", fmt.Errorf("%s must have at most %d bytes", path, maxSecret)
	}
	return string(data), err
}
