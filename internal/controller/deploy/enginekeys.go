package deploy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
)

// Variables with the API key of an engine in its container. vLLM reads its own; SGLang reads none: see
// launchSGLang.
const (
	envVLLMKey   = "VLLM_API_KEY"
	envSGLangKey = "SKYSERVE_ENGINE_KEY"
)

// launchSGLang runs SGLang's server with the API key of envSGLangKey. SGLang accepts the key only as an
// argument, which the machine's process list would show: this program adds it after the start.
const launchSGLang = `import os, runpy, sys; sys.argv += ["--api-key", os.environ.pop("` + envSGLangKey + `")]; runpy.run_module("sglang.launch_server", run_name="__main__")`

// fileEngineKey is the path of a simulated engine's API key, below the directory of its machine's agent.
const fileEngineKey = "engine/api-key"

// EngineKeySources returns the sources of all keys of engines in service.yaml, with the keys that refer
// to them; each source once.
func EngineKeySources(spec *service.Spec) (sources, at []string) {
	add := func(key, source string) {
		if source != "" && !slices.Contains(sources, source) {
			sources, at = append(sources, source), append(at, key)
		}
	}
	for i, m := range spec.Models {
		add(fmt.Sprintf("models[%d].engine.api_key", i), m.Engine.APIKey)
	}
	for i, r := range spec.Regions {
		for j, e := range r.Endpoints {
			add(fmt.Sprintf("regions[%d].endpoints[%d].api_key", i, j), e.APIKey)
		}
	}
	return sources, at
}

// fileOfEngineKey returns the path of a balancer's copy of a key. It depends only on the source, so that
// the controller's assignments refer to the right key whatever else changes in service.yaml.
func fileOfEngineKey(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "balancer/engine-key-" + hex.EncodeToString(sum[:8])
}

// engineKeySource returns the source of an engine's key for a balancer; empty = no key. A balancer on
// this computer reads the operator's sources itself, others have copies.
func (d *deploymentBuilder) engineKeySource(balancer service.Region, source string) string {
	switch {
	case source == "":
		return ""
	case cloud.RunsOnThisComputer(balancer):
		return d.absoluteRef(source)
	}
	return "file:" + fileOfEngineKey(source)
}

// addEngineKeys gives a balancer the keys of all engines: when another balancer dies it serves its
// replicas.
func (d *deploymentBuilder) addEngineKeys(c *service.BalancerConfig, files map[string]string) error {
	for _, k := range d.engineKeys() {
		c.EngineKeys = append(c.EngineKeys, service.EngineKey{APIKey: d.engineKeySource(c.Region, k.APIKey), URL: k.URL})
	}
	if cloud.RunsOnThisComputer(c.Region) {
		return nil
	}
	sources, at := EngineKeySources(d.spec)
	for i, source := range sources {
		key, err := d.Secrets(source)
		if err != nil {
			return fmt.Errorf("%s: %w", at[i], err)
		}
		files[fileOfEngineKey(source)] = key
	}
	return nil
}

// engineKeys returns the keys of launched engines, which are reached over mTLS, and of engines of static
// regions with their URLs.
func (d *deploymentBuilder) engineKeys() []service.EngineKey {
	var keys []service.EngineKey
	add := func(k service.EngineKey) {
		if k.APIKey != "" && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, m := range d.spec.Models {
		add(service.EngineKey{APIKey: m.Engine.APIKey})
	}
	for _, region := range d.spec.Regions {
		for _, r := range static.Replicas(d.spec, region) { // none in other regions
			add(service.EngineKey{APIKey: r.APIKey, URL: r.URL})
		}
	}
	return keys
}

// addProviders gives a balancer the external APIs for fallbacks, with their keys.
func (d *deploymentBuilder) addProviders(c *service.BalancerConfig, files map[string]string) error {
	for i, p := range d.spec.Providers {
		if source := p.APIKey; source != "" {
			p.APIKey = d.engineKeySource(c.Region, source)
			if !cloud.RunsOnThisComputer(c.Region) {
				key, err := d.Secrets(source)
				if err != nil {
					return fmt.Errorf("providers[%d].api_key: %w", i, err)
				}
				files[fileOfEngineKey(source)] = key
			}
		}
		c.Providers = append(c.Providers, p)
	}
	return nil
}

// giveEngineKey passes an engine its API key.
func (d *deploymentBuilder) giveEngineKey(u *agent.Unit, o provision.Object, e *service.Engine) error {
	if e.APIKey == "" {
		return nil
	}
	if cloud.RunsOnThisComputer(o.Region) { // a simulated engine, which reads the operator's source itself
		u.Args = append(u.Args, "--api-key", d.absoluteRef(e.APIKey))
		return nil
	}
	text, err := d.Secrets(e.APIKey)
	if err != nil {
		return fmt.Errorf("engine.api_key: %w", err)
	}
	key, err := service.ParseBearerKey(text)
	if err != nil {
		return fmt.Errorf("engine.api_key: reading %s: %w", e.APIKey, err)
	}
	switch e.Kind {
	case service.EngineSim:
		u.Args, u.Files = append(u.Args, "--api-key", "file:"+fileEngineKey), map[string]string{fileEngineKey: string(key)}
	case service.EngineVLLM:
		u.Secrets = withSecret(u.Secrets, envVLLMKey, key)
	case service.EngineSGLang:
		u.Args = append([]string{"python3", "-c", launchSGLang}, u.Args[len(sglangServer):]...)
		u.Secrets = withSecret(u.Secrets, envSGLangKey, key)
	case service.EngineOpenAI:
		u.ReadinessKey = string(key) // its readiness is that of /v1/models
	}
	return nil
}

// sglangServer is the command that starts SGLang's server.
var sglangServer = []string{"python3", "-m", "sglang.launch_server"}

// withSecret returns variables with one more.
func withSecret(secrets map[string]string, name string, key service.Secret) map[string]string {
	if secrets == nil {
		secrets = map[string]string{}
	}
	secrets[name] = string(key)
	return secrets
}
