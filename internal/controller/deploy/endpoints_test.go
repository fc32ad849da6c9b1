package deploy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// Machines that share an address are distinguished by their provider's ports.
func TestProviderPortsOfSharedAddress(t *testing.T) {
	spec := parse(t, twoClouds)
	shared := netip.MustParseAddr("127.0.0.1")
	machine := func(id string, kind provision.ObjectKind, at provision.Addresses) provision.Object {
		return provision.Object{
			ID: id, Kind: kind, Service: "chat", Region: "aws/us-east-1", Handle: id, Labels: map[string]string{"model": "llama"}, PublicIP: shared, PrivateIP: shared,
			Endpoints: provision.MachineEndpoints{Advertised: at, Listen: at, Loopback: "127.0.0.1", Controller: "127.0.0.1:8311"},
		}
	}
	have := []provision.Object{
		machine("lb-us-east-1-0", provision.KindBalancer, provision.Addresses{Public: "127.0.0.1:8001", PublicTLS: "127.0.0.1:8001", Admin: "127.0.0.1:8101", Agent: "127.0.0.1:8501", Store: "127.0.0.1:8301"}),
		machine("us-east-1-0", provision.KindReplica, provision.Addresses{Agent: "127.0.0.1:8502", Replica: "127.0.0.1:8201"}),
	}
	all, err := deploy.Deployments(deploy.DeploymentInput{Spec: spec, SpecYAML: []byte(twoClouds), Secrets: func(string) (string, error) { return "key", nil }}, have)
	if err != nil {
		t.Fatal(err)
	}
	config := all["lb-us-east-1-0"].Units[0].Files["balancer/config.yaml"]
	for _, want := range []string{"listen: 127.0.0.1:8001", "admin: 127.0.0.1:8101", "url: https://127.0.0.1:8201"} {
		if !strings.Contains(config, want) {
			t.Errorf("the balancer's configuration lacks %q:\n%s", want, config)
		}
	}
	if proxy := all["us-east-1-0"].Proxy; proxy == nil || proxy.Listen != "127.0.0.1:8201" {
		t.Errorf("the replica's proxy is %+v, want 127.0.0.1:8201", proxy)
	}
	if got := deploy.PublicURL(spec, have[0]); got != "http://127.0.0.1:8001" {
		t.Errorf("clients are sent to %s", got)
	}
}

// Balancers reach an engine's cache events through the proxy on its machine, which allows those addresses only.
func TestCacheEventsOfLaunchedEngines(t *testing.T) {
	for name, tt := range map[string]struct {
		engine          string
		at              provision.MachineEndpoints
		events, replays string
		connect         []string
	}{
		"none":             {"{kind: vllm, cache_events: false}", provision.MachineEndpoints{}, "", "", nil},
		"vllm, two ranks":  {"{kind: vllm, cache_events: true, data_parallel: 2}", provision.MachineEndpoints{}, "127.0.0.1:5557", "127.0.0.1:5657", []string{"127.0.0.1:5557", "127.0.0.1:5657", "127.0.0.1:5558", "127.0.0.1:5658"}},
		"sim in a cloud":   {"{kind: sim, cache_events: true}", provision.MachineEndpoints{}, "127.0.0.1:5557", "127.0.0.1:5657", []string{"127.0.0.1:5557", "127.0.0.1:5657"}},
		"sim on this host": {"{kind: sim, cache_events: true}", provision.MachineEndpoints{Loopback: "127.0.0.1", Engine: "127.0.0.1:8201", CacheEvents: "127.0.0.1:8801", Listen: provision.Addresses{Replica: "127.0.0.1:8701", Agent: "127.0.0.1:8601"}}, "127.0.0.1:8801", "127.0.0.1:8901", []string{"127.0.0.1:8801", "127.0.0.1:8901"}},
	} {
		text := "name: chat\nbalancer: {insecure: true}\nmodels: [{name: org/llama, gpus: [{type: L4, count: 2, tps: 1000}], engine: " + tt.engine + "}]\nregions: [{name: aws/us-east-1, replicas: {min: 1, max: 2}}]\n"
		replica := machineAt("us-east-1-0", provision.KindReplica, "aws/us-east-1", "org/llama", "12", 2)
		replica.Endpoints = tt.at
		all, err := deploy.Deployments(deploy.DeploymentInput{Spec: parse(t, text), SpecYAML: []byte(text)}, []provision.Object{machineAt("lb-us-east-1-0", provision.KindBalancer, "aws/us-east-1", "", "11", 0), replica})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := all["us-east-1-0"]; d.Check() != nil || !slices.Equal(d.Proxy.ConnectTargets, tt.connect) {
			t.Errorf("%s: the proxy connects to %v, want %v (%v)", name, d.Proxy.ConnectTargets, tt.connect, d.Check())
		}
		var c service.BalancerConfig
		if err := yaml.UnmarshalWithOptions([]byte(all["lb-us-east-1-0"].Units[0].Files["balancer/config.yaml"]), &c, yaml.Strict()); err != nil {
			t.Fatal(err)
		}
		if len(c.Replicas) != 1 || c.Replicas[0].CacheEvents != tt.events || c.Replicas[0].CacheReplays != tt.replays {
			t.Errorf("%s: replicas %+v, want events at %q, replays at %q", name, c.Replicas, tt.events, tt.replays)
		}
		if engine := strings.Join(all["us-east-1-0"].Units[0].Args, " "); strings.Contains(tt.engine, "sim") && !strings.Contains(engine, "--cache-events "+tt.events) {
			t.Errorf("%s: arguments %s", name, engine)
		}
	}
}
