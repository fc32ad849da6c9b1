package deploy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// contentWithKeys returns the content of a service whose engines require keys.
func contentWithKeys(t *testing.T) deploy.DeploymentInput {
	t.Helper()
	secret["env:LLAMA_KEY"], secret["file:/run/qwen"], secret["env:PARIS_KEY"] = "sk-llama", "sk-qwen\n", "sk-paris"
	t.Cleanup(func() {
		maps.DeleteFunc(secret, func(ref, _ string) bool {
			return ref == "env:LLAMA_KEY" || ref == "file:/run/qwen" || ref == "env:PARIS_KEY"
		})
	})
	text := strings.NewReplacer(
		"max_num_seqs: 256,", "max_num_seqs: 256, api_key: env:LLAMA_KEY,",
		"env: {LEVEL: warn}", "env: {LEVEL: warn}, api_key: file:/run/qwen",
		`endpoints: ["http://10.0.0.7:8000"]`, `endpoints: [{url: "http://10.0.0.7:8000", api_key: env:PARIS_KEY}, "http://10.0.0.8:8000"]`,
	).Replace(deployed)
	c := content(t)
	c.Spec, c.SpecYAML = parse(t, text), []byte(text)
	return c
}

// Engines receive their keys without an argument that the process list would show.
func TestEnginesReceiveTheirKeys(t *testing.T) {
	all, err := deploy.Deployments(contentWithKeys(t), testMachines())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]struct{ variable, key, first string }{
		"us-east-1-0":      {"VLLM_API_KEY", "sk-llama", "--model"},
		"us-east-1-qwen-0": {"SKYSERVE_ENGINE_KEY", "sk-qwen", "python3"},
	} {
		u := all[id].Units[0]
		if u.Secrets[want.variable] != want.key || u.Args[0] != want.first || strings.Contains(strings.Join(u.Args, " "), "sk-") {
			t.Errorf("%s: arguments %q with the variables %v", id, u.Args, slices.Sorted(maps.Keys(u.Secrets)))
		}
		if err := all[id].Check(); err != nil {
			t.Error(err)
		}
	}
}

// Every balancer has the keys of all engines in files, because it serves the replicas of a dead one. Its
// configuration refers to them.
func TestBalancersReceiveEngineKeys(t *testing.T) {
	all, err := deploy.Deployments(contentWithKeys(t), testMachines())
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{} // by replica
	for _, id := range []string{"lb-us-east-1-0", "lb-us-east-1-1", "lb-europe-west4-0"} {
		u := all[id].Units[0]
		var c service.BalancerConfig
		if err := yaml.UnmarshalWithOptions([]byte(u.Files["balancer/config.yaml"]), &c, yaml.Strict()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(u.Files["balancer/config.yaml"], "sk-") {
			t.Errorf("%s: the configuration contains a key", id)
		}
		var copies []string
		for _, k := range c.EngineKeys {
			copies = append(copies, k.URL+" "+strings.TrimSpace(u.Files[strings.TrimPrefix(k.APIKey, "file:")]))
		}
		if slices.Sort(copies); !slices.Equal(copies, []string{" sk-llama", " sk-qwen", "http://10.0.0.7:8000 sk-paris"}) {
			t.Errorf("%s has the keys %q", id, copies)
		}
		for _, r := range c.Replicas {
			keys[r.ID] = strings.TrimSpace(u.Files[strings.TrimPrefix(r.APIKey, "file:")])
		}
	}
	want := map[string]string{
		"us-east-1-0": "sk-llama", "us-east-1-qwen-0": "sk-qwen", "europe-west4-0": "sk-llama",
		"paris-10-0-0-7-8000": "sk-paris", "paris-10-0-0-8-8000": "", // of two models, so it could be either
	}
	if !maps.Equal(keys, want) {
		t.Errorf("got the keys %v, want %v", keys, want)
	}
}

// A changed key is delivered to balancers without a restart, and restarts the engine.
func TestChangedEngineKeyReloadsBalancers(t *testing.T) {
	c := contentWithKeys(t)
	before, err := deploy.Deployments(c, testMachines())
	if err != nil {
		t.Fatal(err)
	}
	secret["env:LLAMA_KEY"] = "sk-llama-two"
	after, err := deploy.Deployments(c, testMachines())
	if err != nil {
		t.Fatal(err)
	}
	for id := range before {
		was, is := before[id].Units[0], after[id].Units[0]
		wants := id != "us-east-1-qwen-0"
		if changed := before[id].Revision != after[id].Revision; changed != wants || was.ImmutableHash != is.ImmutableHash {
			t.Errorf("%s: changed %t, want %t; restarts its balancer: %t", id, changed, wants, was.ImmutableHash != is.ImmutableHash)
		}
	}
}

func TestUnreadableEngineKeyIsNamed(t *testing.T) {
	c := contentWithKeys(t)
	delete(secret, "env:PARIS_KEY")
	if err := deploy.CheckSecrets(c.Spec, secrets); err == nil || !strings.Contains(err.Error(), "regions[2].endpoints[0].api_key: read env:PARIS_KEY") {
		t.Errorf("got %v", err)
	}
}

// An OpenAI-compatible engine is ready when its model list is served, which needs the key. A simulated one
// reads it from a file.
func TestOtherEnginesReceiveTheirKeys(t *testing.T) {
	c := contentWithKeys(t)
	c.Spec.Models[0].Engine.Kind, c.Spec.Models[1].Engine.Kind = service.EngineOpenAI, service.EngineSim
	c.Spec.Models[0].Engine.Image = "mine/engine:1"
	all, err := deploy.Deployments(c, testMachines())
	if err != nil {
		t.Fatal(err)
	}
	if u := all["us-east-1-0"].Units[0]; u.ReadinessKey != "sk-llama" || len(u.Secrets) != 1 {
		t.Errorf("the OpenAI-compatible engine's readiness probe has the key %q", u.ReadinessKey)
	}
	u := all["us-east-1-qwen-0"].Units[0]
	if !slices.Equal(u.Args[len(u.Args)-2:], []string{"--api-key", "file:engine/api-key"}) || u.Files["engine/api-key"] != "sk-qwen" {
		t.Errorf("the simulated engine has the arguments %q", u.Args)
	}
}

// On this computer, processes read the operator's sources themselves; nothing has a copy.
func TestLocalServiceHasNoCopiesOfKeys(t *testing.T) {
	const text = `
name: chat
models: [{name: m, engine: {kind: sim, api_key: file:engine-key}}]
regions: [{name: local/us}]
`
	c := deploy.DeploymentInput{Spec: parse(t, text), SpecYAML: []byte(text), BaseDir: "/srv/chat", Secrets: func(ref string) (string, error) {
		t.Errorf("%s was read", ref)
		return "", nil
	}}
	at := provision.Addresses{Agent: "127.0.0.1:8401", Admin: "127.0.0.1:8101", Replica: "127.0.0.1:8601", Public: "127.0.0.1:8001"}
	machine := func(id string, kind provision.ObjectKind) provision.Object {
		o := machineAt(id, kind, "local/us", "m", "1", 0)
		o.Endpoints = provision.MachineEndpoints{Advertised: at, Listen: at, Loopback: "127.0.0.1", Engine: "127.0.0.1:8201"}
		return o
	}
	all, err := deploy.Deployments(c, []provision.Object{machine("lb-us-0", provision.KindBalancer), machine("us-0", provision.KindReplica)})
	if err != nil {
		t.Fatal(err)
	}
	if args := all["us-0"].Units[0].Args; !slices.Equal(args[len(args)-2:], []string{"--api-key", "file:/srv/chat/engine-key"}) {
		t.Errorf("the engine has the arguments %q", args)
	}
	var config service.BalancerConfig
	if err := yaml.Unmarshal([]byte(all["lb-us-0"].Units[0].Files["balancer/config.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	if got := config.Replicas[0].APIKey; got != "file:/srv/chat/engine-key" || !slices.Equal(config.EngineKeys, []service.EngineKey{{APIKey: got}}) {
		t.Errorf("the balancer reads %q of %q", got, config.EngineKeys)
	}
}

// SGLang's server receives the key as an argument inside its process only.
func TestSGLangLauncherAddsKey(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: the launcher of SGLang is not run")
	}
	all, err := deploy.Deployments(contentWithKeys(t), testMachines())
	if err != nil {
		t.Fatal(err)
	}
	u := all["us-east-1-qwen-0"].Units[0]
	dir := t.TempDir()
	const server = `import json, os, sys
if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], "SKYSERVE_ENGINE_KEY" in os.environ, open("/proc/self/cmdline").read()]))
`
	for name, text := range map[string]string{"__init__.py": "", "launch_server.py": server} {
		path := filepath.Join(dir, "sglang", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), python, u.Args[1:]...)
	cmd.Env = []string{"PYTHONPATH=" + dir, "SKYSERVE_ENGINE_KEY=" + u.Secrets["SKYSERVE_ENGINE_KEY"]}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var args []string
	for _, arg := range got[0].([]any) {
		args = append(args, arg.(string))
	}
	want := append(slices.Clone(u.Args[3:]), "--api-key", "sk-qwen")
	if !slices.Equal(args, want) || got[1].(bool) || strings.Contains(got[2].(string), "sk-qwen") {
		t.Errorf("the server received %q, want %q; the variable remains: %v; the process list shows %q", args, want, got[1], got[2])
	}
}

// Every balancer receives splits, and providers with the model's fallbacks; a provider's key is in a file,
// and the admin API cannot attach a replica with it.
func TestBalancersReceiveProviders(t *testing.T) {
	c := contentWithKeys(t)
	secret["env:PROVIDER_KEY"] = "sk-provider"
	t.Cleanup(func() { delete(secret, "env:PROVIDER_KEY") })
	c.Spec.Providers = []service.Provider{{Name: "ext", URL: "https://api.example.com", APIKey: "env:PROVIDER_KEY", Models: []service.ProviderModel{{Name: "gpt", Price: &service.Price{Input: 1}}}, USDPerDay: 5}}
	c.Spec.Models[0].Fallback, c.Spec.Models[0].FallbackAfter = []string{"org/qwen", "ext/gpt"}, 3*time.Second
	c.Spec.Splits = []service.Split{{Name: "chat", Weights: map[string]int{"org/llama": 9, "sql": 1}}}
	all, err := deploy.Deployments(c, testMachines())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"lb-us-east-1-0", "lb-europe-west4-0"} {
		u := all[id].Units[0]
		var got service.BalancerConfig
		if err := yaml.UnmarshalWithOptions([]byte(u.Files["balancer/config.yaml"]), &got, yaml.Strict()); err != nil {
			t.Fatal(err)
		}
		if m := got.Models[0]; !slices.Equal(m.Fallback, c.Spec.Models[0].Fallback) || m.FallbackAfter != 3*time.Second {
			t.Errorf("%s: the model is %+v", id, m)
		}
		if !reflect.DeepEqual(got.Splits, c.Spec.Splits) {
			t.Errorf("%s: the splits are %+v", id, got.Splits)
		}
		p := got.Providers[0]
		if u.Files[strings.TrimPrefix(p.APIKey, "file:")] != "sk-provider" || slices.Contains(got.EngineKeys, service.EngineKey{APIKey: p.APIKey}) || p.USDPerDay != 5 || p.Models[0].Price.Input != 1 {
			t.Errorf("%s: the provider is %+v", id, p)
		}
	}
	if c.Spec.Providers[0].APIKey != "env:PROVIDER_KEY" {
		t.Error("the service's own providers were changed")
	}
	if all["us-east-1-0"].Units[0].Secrets["VLLM_API_KEY"] != "sk-llama" || strings.Contains(fmt.Sprint(all["us-east-1-0"]), "sk-provider") {
		t.Error("a replica received the provider's key")
	}
	delete(secret, "env:PROVIDER_KEY")
	if err := deploy.CheckSecrets(c.Spec, secrets); err == nil || !strings.Contains(err.Error(), "providers[0].api_key: read env:PROVIDER_KEY") {
		t.Errorf("without the key: %v", err)
	}
}
