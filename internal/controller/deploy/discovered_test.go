package deploy_test

import (
	"net/netip"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/provision"
)

// The file and the DNS names of a static region reach its balancer, which watches them. Other endpoints stay
// replicas of the configuration.
func TestBalancerDiscoversEndpoints(t *testing.T) {
	const text = `
name: chat
models: [{name: m, engine: {kind: vllm}}]
regions:
  - name: static/paris
    endpoints: ["http://10.0.0.7:8000", "dns+http://engines.example.com:8000"]
    endpoints_file: engines.txt
  - name: static/rome
    endpoints: ["http://10.0.0.9:8000"]
`
	have := []provision.Object{
		{ID: "lb-paris-0", Kind: provision.KindBalancer, Service: "chat", Region: "static/paris", Handle: "lb-paris-0", PrivateIP: netip.MustParseAddr("127.0.0.1")},
		{ID: "lb-rome-0", Kind: provision.KindBalancer, Service: "chat", Region: "static/rome", Handle: "lb-rome-0", PrivateIP: netip.MustParseAddr("127.0.0.1")},
	}
	all, err := deploy.Deployments(deploy.DeploymentInput{Spec: parse(t, text), SpecYAML: []byte(text), BaseDir: "/etc/chat", Secrets: func(string) (string, error) { return "key", nil }}, have)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string][]string{
		"lb-paris-0": {"replicas_file: /etc/chat/engines.txt", "url: http://10.0.0.7:8000", "url: dns+http://engines.example.com:8000"},
		"lb-rome-0":  {"url: http://10.0.0.9:8000"},
	} {
		config := all[id].Units[0].Files["balancer/config.yaml"]
		for _, part := range want {
			if !strings.Contains(config, part) {
				t.Errorf("%s: the configuration lacks %q:\n%s", id, part, config)
			}
		}
		if id == "lb-rome-0" && (strings.Contains(config, "replicas_file") || strings.Contains(config, "dns+")) {
			t.Errorf("%s discovers the machines of another region:\n%s", id, config)
		}
	}
}
