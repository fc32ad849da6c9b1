package lbd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"skyserve/internal/service"
	"skyserve/lbd/discover"
)

// engineKeys are the API keys of engines.
type engineKeys struct {
	bySource map[string]service.Secret
	// allowed are the engines that may receive the key of a source; one without a URL stands for all
	// replicas with mTLS.
	allowed map[service.EngineKey]bool
}

// readEngineKeys reads the keys of the engines in a configuration.
func readEngineKeys(p *problems, cfg service.BalancerConfig) engineKeys {
	keys := engineKeys{map[string]service.Secret{}, map[service.EngineKey]bool{}}
	read := func(at string, k service.EngineKey) {
		if k.APIKey == "" {
			return
		}
		keys.allowed[k] = true
		if keys.bySource[k.APIKey] == "" {
			keys.bySource[k.APIKey] = readKeyFrom(p, at, k.APIKey)
		}
	}
	for i, r := range cfg.Replicas {
		read(fmt.Sprintf("replicas[%d].api_key", i), service.EngineKey{APIKey: r.APIKey, URL: r.URL})
	}
	for i, k := range cfg.EngineKeys {
		read(fmt.Sprintf("engine_keys[%d].api_key", i), k)
	}
	return keys
}

// readKeyFrom reads a key from its source; empty after a problem. at is the place of the source in the configuration,
// for the problem.
func readKeyFrom(p *problems, at, source string) service.Secret {
	text, err := secretFrom(source)
	if err != nil {
		p.addProblem(at, err.Error(), "set the source of the key: env:NAME or file:PATH")
		return ""
	}
	key, err := service.ParseBearerKey(text)
	if err != nil {
		p.addProblem(at, fmt.Sprintf("reading %s: %v", source, err), "")
	}
	return key
}

// readKey returns a replica with its key. Without a source, a replica that is attached again at the same
// URL keeps the key that the admin API passed before. A replica of a DNS name has the key of the name.
func (k engineKeys) readKey(cfg, attached service.ReplicaConfig, origin string) (service.ReplicaConfig, error) {
	if cfg.APIKey == "" {
		if cfg.URL == attached.URL && attached.APIKey == "" {
			cfg.Key = cmp.Or(cfg.Key, attached.Key)
		}
		return cfg, nil
	}
	url := cfg.URL
	if name, named := discover.NameOf(origin); named {
		url = name
	}
	forReplica, forMTLS := k.allowed[service.EngineKey{APIKey: cfg.APIKey, URL: url}], k.allowed[service.EngineKey{APIKey: cfg.APIKey}]
	if !forReplica && (!cfg.MTLS || !forMTLS) {
		return cfg, fmt.Errorf("adding replica %q: api_key: this balancer's configuration does not allow the source %s for %s: pass the key itself, or add both to engine_keys", cfg.ID, cfg.APIKey, cfg.URL)
	}
	cfg.Key = k.bySource[cfg.APIKey]
	return cfg, nil
}

// setKeys replaces the keys by those of a new configuration. It returns the replicas whose key has
// changed, sorted by id: probes and requests use the new key at once. Replicas whose source is gone keep
// their key until they are attached again or removed.
func (f *fleet) setKeys(keys engineKeys) (changed []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = keys
	for _, id := range slices.Sorted(maps.Keys(f.attached)) {
		cfg := f.attached[id]
		key := keys.bySource[cfg.APIKey]
		if key == "" || key == cfg.Key {
			continue
		}
		cfg.Key = key
		if err := f.updateRuntime(cfg, true, f.isDraining(id)); err != nil { // it was valid before, and only the key is new
			f.log.Error("changing the API key of a replica failed", "replica", id, "err", err)
			continue
		}
		f.attached[id] = cfg
		f.prober.Start(cfg)
		changed = append(changed, id)
	}
	return changed
}
