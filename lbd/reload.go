package lbd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"skyserve/internal/identity"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/peer"
	"skyserve/lbd/proxy"
)

// reload reads the configuration again and applies the settings that can change while the balancer
// runs. Requests in flight continue. If the configuration is invalid, reload changes nothing and
// returns *telemetry.ReloadRefused.
func (b *balancer) reload() (telemetry.Reload, error) {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	next := b.configured
	if b.opts.ReadConfig != nil {
		var err error
		if next, err = b.opts.ReadConfig(); err != nil {
			return b.refuseReload([]string{err.Error()})
		}
	}
	to, p := b.validateReload(next)
	if len(p) > 0 {
		var texts []string
		for _, problem := range p {
			texts = append(texts, problem.Error())
		}
		return b.refuseReload(texts)
	}
	done := telemetry.Reload{Revision: next.Revision, Changed: []string{}, Restart: []string{}, NotApplied: []string{}}
	diffFields(reflect.ValueOf(b.configured.Immutable()), reflect.ValueOf(next.Immutable()), "", func(key string, _, _ reflect.Value) {
		done.Restart = append(done.Restart, key)
	})
	b.applyReload(to, &done)
	b.warnOfReadableSecrets(to.cfg)
	switch {
	case len(done.Restart) > 0:
		done.Revision = ""
	case b.opts.OnReload != nil:
		b.opts.OnReload(next.Revision)
	}
	b.metrics.reloads.WithLabelValues("applied").Inc()
	b.recordReload(done)
	b.log.Info("configuration reloaded", "changed", done.Changed, "needs_restart", done.Restart, "not_applied", done.NotApplied)
	return done, nil
}

// refuseReload rejects a configuration.
func (b *balancer) refuseReload(problems []string) (telemetry.Reload, error) {
	b.metrics.reloads.WithLabelValues("refused").Inc()
	err := &telemetry.ReloadRefused{Problems: problems}
	b.log.Error("reloading the configuration failed", "err", err)
	return telemetry.Reload{}, err
}

// validatedConfig is a validated configuration that can be applied without failing.
type validatedConfig struct {
	cfg        service.BalancerConfig
	core       core.Config
	keys       []service.APIKey
	pair       *loadedPair // nil without TLS
	engineKeys engineKeys
	providers  []proxy.ProviderAccess
}

// validateReload validates a configuration and its effect on this process, and reads the files to which it
// refers.
func (b *balancer) validateReload(next service.BalancerConfig) (to validatedConfig, p problems) {
	to.cfg = b.configured.Reload(next)
	if p = checkAll(next, b.opts); len(p) == 0 {
		p = checkAll(to.cfg, b.opts)
	}
	to.core = buildCoreConfig(&problems{}, to.cfg) // the problems are already in p
	var err error
	if to.keys, err = apiKeys(to.cfg); err != nil {
		var ce *ConfigError
		errors.As(err, &ce)
		p = append(p, ce)
	}
	to.engineKeys, to.providers = readEngineKeys(&p, to.cfg), readProviders(&p, to.cfg)
	if t := to.cfg.Balancer.TLS; t != nil && b.cert != nil && b.cert.manager == nil {
		if to.pair, err = loadPair(*t); err != nil {
			b.cert.setProblem(err)
			p.addProblem("balancer.tls", err.Error(), "")
		}
	}
	return to, p
}

// applyReload applies a configuration and records the changes.
func (b *balancer) applyReload(to validatedConfig, done *telemetry.Reload) {
	was := b.configured
	b.configured = to.cfg
	live := to.cfg
	live.Listen, live.Admin = b.cfg.Listen, b.cfg.Admin // the ports actually in use
	b.current.Store(&live)
	report := func(format string, args ...any) { done.Changed = append(done.Changed, fmt.Sprintf(format, args...)) }

	if !reflect.DeepEqual(b.providers, to.providers) {
		if err := b.runtime.SetProviders(to.providers); err != nil { // their URLs were checked
			b.log.Error("changing the providers failed", "err", err)
		}
		b.providers = to.providers
		report("providers")
	}
	b.applyStoreURL(was.StoreURL, done)
	newSplits, newModels := !reflect.DeepEqual(was.Splits, to.cfg.Splits), !reflect.DeepEqual(was.Models, to.cfg.Models)
	if newSplits {
		report("splits")
	}
	if newModels {
		report("models")
	}
	// Replicas are attached before splits choose their models, and removed after.
	for _, id := range b.fleet.setKeys(to.engineKeys) {
		report("replicas: %s: the API key", id)
	}
	removed := b.attachReplicas(staticOf(was.Replicas), staticOf(to.cfg.Replicas), done, report)
	if newSplits || newModels {
		b.runtime.SetModels(to.cfg.Models, to.cfg.Splits)
	}
	b.runtime.Reconfigure(to.core)
	b.peers.FollowOtherRegions(to.core.ForwardsToCaches())
	b.runtime.SetContinuation(continuesStreams(to.cfg))
	b.runtime.SetSharePrefixes(to.cfg.Balancer.SharePrefixes)
	b.runtime.SetExposeCache(to.cfg.Balancer.ExposeCache)
	b.runtime.SetAllowedParameters(to.cfg.Balancer.AllowParameters)
	b.setCORS(to.cfg)
	diffFields(reflect.ValueOf(was.Balancer.WithDefaults()), reflect.ValueOf(to.cfg.Balancer.WithDefaults()), "balancer.",
		func(key string, from, into reflect.Value) {
			switch key {
			case "balancer.auth", "balancer.tls": // reported below, by the contents of their files
			case "balancer.cors":
				report("balancer.cors: %s, was %s", describeOrigins(to.cfg.Balancer.CORS), describeOrigins(was.Balancer.CORS))
			default:
				report("%s: %v, was %v", key, reflect.Indirect(into), reflect.Indirect(from))
			}
		})
	if from, into := tenantLimits(was), tenantLimits(to.cfg); !maps.Equal(from, into) {
		report("balancer.auth.tenants: limits of %s", printable.Count(len(into), "tenant"))
		b.runtime.SetTenants(into)
	}
	if from, into := tokenSettings(was), tokenSettings(to.cfg); !reflect.DeepEqual(from, into) {
		report("balancer.auth.oidc: %s of identity tokens", printable.Count(len(into.OIDC), "issuer"))
		b.configureTokens(to.cfg)
	}
	if !slices.Equal(b.keys, to.keys) {
		report("balancer.auth: %s", describeKeyChange(b.keys, to.keys))
		b.keys = to.keys
		b.runtime.SetKeys(to.keys)
	}
	if to.pair != nil && b.cert.replace(to.pair) {
		report("balancer.tls: the certificate")
	}
	if was.SpecFile != to.cfg.SpecFile {
		report("spec_file")
	}
	b.applyPeers(was.Peers, to.cfg.Peers, report)
	b.removeReplicas(removed, done, report)
	b.applySources(was, to.cfg, report)
}

// applyStoreURL changes the addresses of the store. If that fails, the next reload tries again.
func (b *balancer) applyStoreURL(was string, done *telemetry.Reload) {
	if b.configured.StoreURL == was || b.store == nil {
		return
	}
	if err := b.store.SetURL(b.configured.StoreURL); err != nil {
		b.log.Error("changing the addresses of the store failed", "err", err)
		b.configured.StoreURL = was
		done.Restart = append(done.Restart, "store_url")
		return
	}
	done.Changed = append(done.Changed, "store_url")
}

// applyPeers adds, replaces and removes peers; forwarded requests continue.
func (b *balancer) applyPeers(was, wanted []service.PeerConfig, report func(string, ...any)) {
	old := map[string]service.PeerConfig{}
	for _, p := range was {
		old[p.ID] = p
	}
	for _, p := range wanted {
		before, known := old[p.ID]
		delete(old, p.ID)
		switch {
		case known && reflect.DeepEqual(before, p):
			continue
		case known:
			b.peers.Remove(p.ID)
			report("peers: %s changed", p.ID)
		default:
			report("peers: %s added", p.ID)
		}
		b.addPeer(p)
	}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		b.peers.Remove(id)
		b.runtime.RemovePeer(id)
		report("peers: %s removed", id)
	}
}

// peerTLS returns the TLS configuration for a peer. If neither has an identity, a peer on this machine
// is reached at its public port. Its certificate is for the service's name, not for a loopback
// address, but no other machine can respond at that address.
func (b *balancer) peerTLS(p service.PeerConfig) *tls.Config {
	u, err := url.Parse(p.URL)
	if b.identity != nil || err != nil || u.Scheme != "https" {
		return b.identity.clientTLS(identity.Balancer)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err != nil || !addr.IsLoopback() {
		return nil
	}
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above
}

// addPeer adds a peer.
func (b *balancer) addPeer(p service.PeerConfig) {
	transport := peer.NewTransport(p.EmulateRTT, b.peerTLS(p))
	b.runtime.AddPeer(p, transport)
	b.peers.Add(p, transport)
}

// attachReplicas adds and updates replicas, and returns the ids of those that were removed, sorted. A replica that the
// controller has assigned meanwhile is not changed.
func (b *balancer) attachReplicas(was, wanted []service.ReplicaConfig, done *telemetry.Reload, report func(string, ...any)) (removed []string) {
	b.fleet.discovering.Lock() // meanwhile no source drops a replica that the configuration adds
	defer b.fleet.discovering.Unlock()
	old := map[string]service.ReplicaConfig{}
	for _, r := range was {
		old[replicaID(r)] = r
	}
	for _, r := range wanted {
		id := replicaID(r)
		before, known := old[id]
		delete(old, id)
		if known && reflect.DeepEqual(before, r) || b.fleet.hasReplica(r) {
			continue
		}
		switch added, err := b.fleet.attach(r, originConfig); {
		case errors.Is(err, proxy.ErrOlderEpoch):
			done.NotApplied = append(done.NotApplied, id)
			b.log.Info("a replica is left to the controller, which assigns it", "replica", id)
		case err != nil: // its URL was checked: a source (a file or a DNS name) has attached it
			done.NotApplied = append(done.NotApplied, id)
			b.log.Warn("updating a replica failed, keeping its configuration", "replica", id, "err", err)
		case added:
			report("replicas: %s added", id)
		default:
			report("replicas: %s changed", id)
		}
	}
	b.fleet.setConfigured(wanted)
	return slices.Sorted(maps.Keys(old))
}

// removeReplicas drains replicas that were removed. One that another origin has attached is not removed.
func (b *balancer) removeReplicas(ids []string, done *telemetry.Reload, report func(string, ...any)) {
	for _, id := range ids {
		switch held, owned := b.fleet.removeWhenIdle(id, originConfig); {
		case held && !owned:
			done.NotApplied = append(done.NotApplied, id)
		case held:
			report("replicas: %s removed", id)
		}
	}
}

// applySources follows the file and the DNS names of the configuration.
func (b *balancer) applySources(was, is service.BalancerConfig, report func(string, ...any)) {
	names := namesOf(is.Replicas)
	if was.ReplicasFile == is.ReplicasFile && reflect.DeepEqual(namesOf(was.Replicas), names) {
		return
	}
	b.discovery.SetSources(is.ReplicasFile, names)
	report("replicas: the file or the DNS names that list them")
}

// diffFields calls report for each field that differs between two structs of one type, with its key in
// service.yaml.
func diffFields(was, is reflect.Value, prefix string, report func(key string, was, is reflect.Value)) {
	for i := range was.NumField() {
		key := service.KeyOf(was.Type().Field(i))
		switch from, into := was.Field(i), is.Field(i); {
		case reflect.DeepEqual(from.Interface(), into.Interface()):
		case from.Kind() == reflect.Struct:
			diffFields(from, into, prefix+key+".", report)
		default:
			report(prefix+key, from, into)
		}
	}
}

// continuesStreams reports whether another replica continues a stream whose replica failed.
func continuesStreams(cfg service.BalancerConfig) bool { return *cfg.Balancer.WithDefaults().Continue }

// setCORS sets the web pages that may use the public API.
func (b *balancer) setCORS(cfg service.BalancerConfig) {
	c := cfg.Balancer.CORS
	b.runtime.SetCORS(c)
	if c != nil && slices.Contains(c.Origins, service.AnyOrigin) && !requiresKeys(&cfg) {
		b.log.Warn("every web page may use this service: balancer.cors permits all origins and no API key is required")
	}
}

// describeOrigins describes the web pages that may use the public API.
func describeOrigins(c *service.CORS) string {
	if c == nil {
		return "none"
	}
	return strings.Join(c.Origins, " ")
}

// tokenSettings returns the settings of identity tokens.
func tokenSettings(cfg service.BalancerConfig) service.Auth {
	if a := cfg.Balancer.Auth; a != nil && len(a.OIDC) > 0 {
		return service.Auth{OIDC: a.OIDC, Limits: a.Limits}
	}
	return service.Auth{}
}

// configureTokens configures which identity tokens are accepted.
func (b *balancer) configureTokens(cfg service.BalancerConfig) {
	s := tokenSettings(cfg)
	b.tokens.Configure(s.OIDC, s.Limits)
}

// tenantLimits returns the limits of all tenants.
func tenantLimits(cfg service.BalancerConfig) map[string]service.KeyLimits {
	if cfg.Balancer.Auth == nil {
		return nil
	}
	return cfg.Balancer.Auth.Tenants
}

// describeKeyChange describes a change of API keys without revealing one.
func describeKeyChange(was, is []service.APIKey) string {
	if len(is) == 0 {
		return "API keys are no longer required"
	}
	old := map[string]service.APIKey{}
	for _, key := range was {
		old[key.Secret] = key
	}
	added, changed := 0, 0
	now := map[string]bool{}
	for _, key := range is {
		before, known := old[key.Secret]
		switch {
		case !known:
			added++
		case before != key:
			changed++
		}
		now[key.Secret] = true
	}
	removed := 0
	for _, key := range was {
		if !now[key.Secret] {
			removed++
		}
	}
	text := fmt.Sprintf("%s, %d added, %d removed", printable.Count(len(is), "key"), added, removed)
	if changed > 0 {
		text += fmt.Sprintf(", %d with changed limits or attributes", changed)
	}
	return text
}
