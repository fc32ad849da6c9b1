package deploy_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

const deployed = `
name: chat
models:
  - name: org/llama
    aliases: [small]
    price: {input: 0.2, cached_input: 0, output: 0.6}
    engine: {kind: vllm, args: [--max-model-len, "8192"], max_num_seqs: 256, lora: [sql=/adapters/sql]}
    secrets: {HF_TOKEN: env:HF_TOKEN}
    gpus: [{type: L4, count: 4}]
  - name: org/qwen
    engine: {kind: sglang, image: mine/sglang:1, env: {LEVEL: warn}}
    gpus: [{type: L4}]
    regions: {"gcp/europe-west4": {min: 0, max: 0}}
regions:
  - name: aws/us-east-1
    balancers: 2
  - name: gcp/europe-west4
  - name: static/paris
    endpoints: ["http://10.0.0.7:8000"]
balancer:
  auth:
    keys_from: env:KEYS
    oidc: [{issuer: "https://login.example.com", audience: chat, role_claim: roles, roles: [{name: batch, max_tier: NIW, limits: {concurrent: 3}}]}]
    tenants: {acme: {concurrent: 9}}
  tls: {cert: /etc/mine.crt, key: /etc/mine.key}
`

func machineAt(id string, kind provision.ObjectKind, region service.Region, model, ip string, gpus int) provision.Object {
	return provision.Object{
		ID: id, Kind: kind, Service: "chat", Region: region, Labels: map[string]string{"model": model, "gpu": "L4"},
		PublicIP: netip.MustParseAddr("203.0.113." + ip), PrivateIP: netip.MustParseAddr("10.0.0." + ip), Offering: &provision.Offering{GPUs: gpus},
	}
}

func testMachines() []provision.Object {
	const b, r = provision.KindBalancer, provision.KindReplica
	return []provision.Object{
		machineAt("us-east-1-qwen-0", r, "aws/us-east-1", "org/qwen", "12", 1),
		machineAt("us-east-1-0", r, "aws/us-east-1", "org/llama", "11", 4),
		machineAt("lb-us-east-1-0", b, "aws/us-east-1", "", "1", 0),
		machineAt("lb-us-east-1-1", b, "aws/us-east-1", "", "2", 0),
		machineAt("lb-europe-west4-0", b, "gcp/europe-west4", "", "3", 0),
		machineAt("europe-west4-0", r, "gcp/europe-west4", "org/llama", "13", 4),
		{ID: "us-east-1-1", Kind: r, Region: "aws/us-east-1", Labels: map[string]string{"model": "org/llama"}}, // it has no address yet
		{ID: "firewall-us-east-1-replica", Kind: provision.KindFirewall, Region: "aws/us-east-1"},
	}
}

var secret = map[string]string{"env:HF_TOKEN": "hf_x", "env:KEYS": "k1", "env:HF": "secret-of-HF", "file:/etc/mine.crt": "CRT", "file:/etc/mine.key": "KEY"}

func secrets(ref string) (string, error) {
	value, ok := secret[ref]
	if !ok {
		return "", errors.New("read " + ref + ": not set")
	}
	return value, nil
}

func content(t *testing.T) deploy.DeploymentInput {
	return deploy.DeploymentInput{Spec: parse(t, deployed), SpecYAML: []byte(deployed), Secrets: secrets, PeerToken: "p"}
}

func deployAll(t *testing.T, have []provision.Object) map[string]agent.Deployment {
	t.Helper()
	all, err := deploy.Deployments(content(t), have)
	if err != nil {
		t.Fatal(err)
	}
	for id, d := range all {
		if err := d.Check(); err != nil || d.Revision == "" {
			t.Errorf("%s: revision %q, %v", id, d.Revision, err)
		}
	}
	return all
}

func TestEngineDeployments(t *testing.T) {
	all := deployAll(t, testMachines())
	if len(all) != 6 {
		t.Errorf("got %d deployments, want one for each machine with an address", len(all))
	}
	for id, want := range map[string]struct{ image, args, to, ready string }{
		"us-east-1-0": {
			"vllm/vllm-openai:v0.33.0",
			"--model org/llama --port 8000 --tensor-parallel-size 4 --max-num-seqs 256 --enable-lora --lora-modules sql=/adapters/sql --kv-events-config " +
				`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv-events"}` + " --max-model-len 8192",
			"http://127.0.0.1:8000", "http://127.0.0.1:8000/health",
		},
		"us-east-1-qwen-0": {
			"mine/sglang:1", "python3 -m sglang.launch_server --model-path org/qwen --host 0.0.0.0 --port 30000 --enable-metrics",
			"http://127.0.0.1:30000", "http://127.0.0.1:30000/health",
		},
	} {
		d := all[id]
		u := d.Units[0]
		if got := strings.Join(u.Args, " "); u.Image != want.image || got != want.args || d.Proxy.Upstream != want.to || u.ReadinessURL != want.ready || !u.GPUs {
			t.Errorf("%s: got %+v behind %+v", id, u, d.Proxy)
		}
	}
	if got := all["us-east-1-0"].Units[0].Secrets["HF_TOKEN"]; got != "hf_x" {
		t.Errorf("the engine's token is %q", got)
	}
	if got := all["us-east-1-qwen-0"].Units[0].Env["LEVEL"]; got != "warn" {
		t.Errorf("the engine's environment has %q", got)
	}
}

// An engine with weights from a bucket is started with their folder and still serves the model's name.
func TestEngineDeploymentsWithBucketWeights(t *testing.T) {
	c := content(t)
	froms := []string{"s3://models/m", "gs://models/m"}
	for i, from := range froms {
		c.Spec.Models[i].Engine.Weights = from
	}
	all, err := deploy.Deployments(c, testMachines())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"us-east-1-0":      "--model /weights --port 8000 --served-model-name org/llama --tensor-parallel-size 4",
		"us-east-1-qwen-0": "--model-path /weights --host 0.0.0.0 --port 30000 --enable-metrics --served-model-name org/qwen",
	} {
		u := all[id].Units[0]
		if got := strings.Join(u.Args, " "); !strings.Contains(got, want) || u.Weights == nil || u.Weights.MountPath != "/weights" || !slices.Contains(froms, u.Weights.Source) {
			t.Errorf("%s: got %q with %+v", id, got, u.Weights)
		}
		if err := all[id].Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestBalancerDeployments(t *testing.T) {
	all := deployAll(t, testMachines())
	replicas := map[string][]string{
		"lb-us-east-1-0":    {"us-east-1-0 https://10.0.0.11:8300", "paris-10-0-0-7-8000 http://10.0.0.7:8000"},
		"lb-us-east-1-1":    {"us-east-1-qwen-0 https://10.0.0.12:8300"},
		"lb-europe-west4-0": {"europe-west4-0 https://10.0.0.13:8300"},
	}
	listens := map[string]string{"lb-us-east-1-0": "10.0.0.1:443", "lb-us-east-1-1": "10.0.0.2:443", "lb-europe-west4-0": "10.0.0.3:443"}
	for id, want := range replicas {
		u := all[id].Units[0]
		var c service.BalancerConfig
		if err := yaml.UnmarshalWithOptions([]byte(u.Files["balancer/config.yaml"]), &c, yaml.Strict()); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		var got, peers []string
		for _, r := range c.Replicas {
			got = append(got, r.ID+" "+r.URL)
			if r.MTLS != strings.HasPrefix(r.URL, "https") {
				t.Errorf("%s uses mTLS for %s: %t", id, r.URL, r.MTLS)
			}
		}
		for _, p := range c.Peers {
			peers = append(peers, p.ID)
		}
		if !slices.Equal(got, want) || len(peers) != 2 || slices.Contains(peers, id) {
			t.Errorf("%s: got replicas %q and peers %q, want %q and the two others", id, got, peers, want)
		}
		if c.Listen != listens[id] || c.Identity == nil || c.PeerToken != "p" || c.Balancer.Auth.KeysFrom != "file:balancer/keys" || u.Files["balancer/keys"] != "k1" ||
			c.Balancer.TLS.Cert != "balancer/tls.crt" || u.Files["balancer/tls.key"] != "KEY" || u.Files["balancer/service.yaml"] != deployed {
			t.Errorf("%s: got %+v with %+v", id, c, u.Files)
		}
		if a := c.Balancer.Auth; len(a.OIDC) != 1 || a.OIDC[0].Issuer != "https://login.example.com" || a.OIDC[0].Roles[0].Limits.Concurrent != 3 || a.Tenants["acme"].Concurrent != 9 {
			t.Errorf("%s: got %+v", id, a)
		}
		if p := c.Models[0].Price; p == nil || p.Input != 0.2 || p.Output != 0.6 || p.CachedInput == nil || *p.CachedInput != 0 || c.Models[1].Price != nil {
			t.Errorf("%s: got prices of %+v", id, c.Models)
		}
		if u.Memory != 2<<30 || c.Balancer.Memory.Total != 2<<30 {
			t.Errorf("%s: limit of %d bytes, configured %s, want 2 GiB", id, u.Memory, c.Balancer.Memory.Total)
		}
	}
}

// A service whose clients present only identity tokens has no file of keys.
func TestTokensAloneNeedNoKeys(t *testing.T) {
	c := content(t)
	auth := *c.Spec.Balancer.Auth
	auth.KeysFrom = ""
	c.Spec.Balancer.Auth = &auth
	if err := deploy.CheckSecrets(c.Spec, c.Secrets); err != nil {
		t.Fatal(err)
	}
	all, err := deploy.Deployments(c, testMachines())
	if err != nil {
		t.Fatal(err)
	}
	files := all["lb-us-east-1-0"].Units[0].Files
	if _, has := files["balancer/keys"]; has || !strings.Contains(files["balancer/config.yaml"], "https://login.example.com") {
		t.Errorf("got %v", files)
	}
}

// A changed memory limit requires a restart, because systemd only reads it at start.
func TestChangedMemoryRestartsBalancer(t *testing.T) {
	before, c := deployAll(t, testMachines()), content(t)
	c.Spec.Balancer.Memory.Total = 3 * service.GiB
	after, err := deploy.Deployments(c, testMachines())
	if err != nil {
		t.Fatal(err)
	}
	const id = "lb-us-east-1-0"
	if was, is := before[id].Units[0], after[id].Units[0]; is.Memory != 3<<30 || is.ImmutableHash == was.ImmutableHash || before[id].Revision == after[id].Revision {
		t.Errorf("got %d bytes, fixed %s, was %s", is.Memory, is.ImmutableHash, was.ImmutableHash)
	}
}

// A running balancer receives a new replica without a restart.
func TestNewReplicaReloadsWithoutRestart(t *testing.T) {
	before, after := deployAll(t, testMachines()), deployAll(t, append(testMachines(), machineAt("europe-west4-1", provision.KindReplica, "gcp/europe-west4", "org/llama", "14", 4)))
	for id := range before {
		changed := before[id].Revision != after[id].Revision
		if want := id == "lb-europe-west4-0"; changed != want {
			t.Errorf("%s: changed %t, want %t", id, changed, want)
		}
		if before[id].Units[0].ImmutableHash != after[id].Units[0].ImmutableHash {
			t.Errorf("%s requires a restart", id)
		}
	}
}

// Removing a replica moves no other replica to another balancer: a moved one is briefly unserved.
func TestReplicasKeepBalancerOnRemoval(t *testing.T) {
	all := testMachines()
	for n := 1; n < 4; n++ {
		id := fmt.Sprintf("us-east-1-%d", n)
		all = append(all, machineAt(id, provision.KindReplica, "aws/us-east-1", "org/llama", strconv.Itoa(14+n), 1))
	}
	before := balancersOfReplicas(t, deployAll(t, all))
	for _, removed := range []string{"us-east-1-0", "us-east-1-1", "us-east-1-2", "us-east-1-3", "us-east-1-qwen-0"} {
		after := balancersOfReplicas(t, deployAll(t, slices.DeleteFunc(slices.Clone(all), func(o provision.Object) bool { return o.ID == removed })))
		want := maps.Clone(before)
		if delete(want, removed); !maps.Equal(after, want) {
			t.Errorf("without %s: got %v, want %v", removed, after, want)
		}
	}
	for _, lb := range []string{"lb-us-east-1-0", "lb-us-east-1-1"} {
		if !slices.Contains(slices.Collect(maps.Values(before)), lb) {
			t.Errorf("%s has no replica: %v", lb, before)
		}
	}
}

// balancersOfReplicas returns the balancer of each replica.
func balancersOfReplicas(t *testing.T, all map[string]agent.Deployment) map[string]string {
	t.Helper()
	at := map[string]string{}
	for id, d := range all {
		for _, u := range d.Units {
			if u.Files["balancer/config.yaml"] == "" {
				continue
			}
			var c service.BalancerConfig
			if err := yaml.UnmarshalWithOptions([]byte(u.Files["balancer/config.yaml"]), &c, yaml.Strict()); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			for _, r := range c.Replicas {
				at[r.ID] = id
			}
		}
	}
	return at
}

// A replica whose model was removed from the file will be terminated, also if the model's name is now an alias of another
// model, whose engine it must not start.
func TestReplicaOfRemovedModelIsOmitted(t *testing.T) {
	for _, model := range []string{"org/mistral", "small"} {
		all := deployAll(t, append(testMachines(), machineAt("us-east-1-removed-0", provision.KindReplica, "aws/us-east-1", model, "15", 1)))
		if _, there := all["us-east-1-removed-0"]; there || len(all) != 6 || strings.Contains(all["lb-us-east-1-0"].Units[0].Files["balancer/config.yaml"], "10.0.0.15") {
			t.Errorf("%s: got deployments of %d machines", model, len(all))
		}
	}
}

func TestSecretErrorsContainNoValues(t *testing.T) {
	defer func(k string) { secret["env:HF_TOKEN"] = k }(secret["env:HF_TOKEN"])
	delete(secret, "env:HF_TOKEN")
	_, err := deploy.Deployments(content(t), testMachines())
	if err == nil || !strings.Contains(err.Error(), "env:HF_TOKEN") || !strings.Contains(err.Error(), "models[0].secrets.HF_TOKEN") || strings.Contains(err.Error(), "k1") {
		t.Errorf("got %v", err)
	}
}

// contentWithACME returns the content of a service whose balancers obtain their certificate.
func contentWithACME(t *testing.T, acme string) deploy.DeploymentInput {
	c := content(t)
	c.SpecYAML = []byte(strings.Replace(deployed, "tls: {cert: /etc/mine.crt, key: /etc/mine.key}", "tls: {acme: {"+acme+"}}", 1) +
		"dns: {provider: route53, name: chat.example.com, zone: example.com}\n")
	c.Spec, c.Zone = parse(t, string(c.SpecYAML)), deploy.HostedZone{ID: "Z1", Endpoint: "http://route53.test"}
	return c
}

// Balancers receive the configuration for obtaining a certificate. One without an IAM role only
// loads certificates that others obtain. Secrets are delivered as files, like all others.
func TestBalancerDeploymentsWithACME(t *testing.T) {
	secret["env:EAB"], secret["file:/etc/root.pem"] = "HMAC", "ROOT"
	for _, tt := range []struct {
		challenge, id string
		want          service.CertificateConfig
	}{
		{"dns-01", "lb-us-east-1-0", service.CertificateConfig{Zone: "example.com", ZoneID: "Z1", Endpoint: "http://route53.test"}},
		{"dns-01", "lb-europe-west4-0", service.CertificateConfig{Zone: "example.com", ZoneID: "Z1", Endpoint: "http://route53.test", FollowOnly: true}},
		{"http-01", "lb-europe-west4-0", service.CertificateConfig{Listen: "10.0.0.3:80"}},
		{"tls-alpn-01", "lb-us-east-1-1", service.CertificateConfig{}},
	} {
		c := contentWithACME(t, "email: ops@example.com, challenge: "+tt.challenge+", ca: \"https://ca.example.com/acme\", root: /etc/root.pem, eab: {key_id: k, hmac: env:EAB}")
		all, err := deploy.Deployments(c, testMachines())
		if err != nil {
			t.Fatal(err)
		}
		d := all[tt.id]
		if err := d.Check(); err != nil {
			t.Errorf("%s: %v", tt.id, err)
		}
		u := d.Units[0]
		var cfg service.BalancerConfig
		if err := yaml.Unmarshal([]byte(u.Files["balancer/config.yaml"]), &cfg); err != nil {
			t.Fatal(err)
		}
		tt.want.Name, tt.want.Dir = "chat.example.com", "balancer/certificates"
		if cfg.Certificate == nil || *cfg.Certificate != tt.want {
			t.Errorf("%s %s: the certificate is %+v, want %+v", tt.id, tt.challenge, cfg.Certificate, tt.want)
		}
		a := cfg.Balancer.TLS.ACME
		if a.Root != "balancer/acme-root.pem" || u.Files[a.Root] != "ROOT" || a.EAB.HMAC != "file:balancer/acme-eab" || u.Files["balancer/acme-eab"] != "HMAC" {
			t.Errorf("%s: %+v with the files %v", tt.id, a, slices.Sorted(maps.Keys(u.Files)))
		}
		if strings.Contains(u.Files["balancer/config.yaml"], "HMAC") || !strings.HasSuffix(cfg.Listen, ":443") {
			t.Errorf("%s: the configuration is\n%s", tt.id, u.Files["balancer/config.yaml"])
		}
		if c.Spec.Balancer.TLS.ACME.Root != "/etc/root.pem" {
			t.Error("the service's own keys were changed")
		}
	}
	delete(secret, "env:EAB")
	_, err := deploy.Deployments(contentWithACME(t, "email: ops@example.com, eab: {key_id: k, hmac: env:EAB}"), testMachines())
	if err == nil || !strings.Contains(err.Error(), "balancer.tls.acme.eab.hmac: read env:EAB") {
		t.Errorf("without the key: %v", err)
	}
}

// A failed balancer on this computer restarts at the same address: until then other balancers keep it
// as a peer, so that its replicas can be adopted. A terminated one in a cloud does not return.
func TestOnlyLocalDeadBalancersStayConfigured(t *testing.T) {
	for text, forgotten := range map[string]bool{localService: false, twoClouds: true} {
		c := content(t)
		c.Spec, c.SpecYAML = parse(t, text), []byte(text)
		var have []provision.Object
		for i, r := range []service.Region{c.Spec.Regions[0].Name, c.Spec.Regions[1].Name} {
			have = append(have, machineAt(provision.BalancerID(r, 0), provision.KindBalancer, r, "", fmt.Sprint(i+1), 0))
		}
		before, err := deploy.Deployments(c, have)
		if err != nil {
			t.Fatal(err)
		}
		have[1].TerminatedReason = "its process is gone"
		after, err := deploy.Deployments(c, have)
		if err != nil {
			t.Fatal(err)
		}
		if id := have[0].ID; (before[id].Revision != after[id].Revision) != forgotten {
			t.Errorf("%s: %s is to run another configuration: %t, want %t", have[1].Region, id, !forgotten, forgotten)
		}
	}
}

// A replica is configured with its actual GPU where the first choice had no capacity.
func TestReplicaReportsItsActualGPU(t *testing.T) {
	have := testMachines()
	have[1].Offering.GPU = "A100" // its label is L4
	for _, id := range []string{"lb-us-east-1-0", "lb-us-east-1-1"} {
		for _, u := range deployAll(t, have)[id].Units {
			if config := u.Files["balancer/config.yaml"]; strings.Contains(config, "id: us-east-1-0\n") && strings.Contains(config, "gpu: A100") {
				return
			}
		}
	}
	t.Error("no balancer is configured with the A100")
}
