package deploy_test

import (
	"net/netip"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
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
		machine("us-east-1-0", provision.KindReplica, provision.Addresses{Agent: "127.0.0.1:8502", Engine: "127.0.0.1:8201"}),
	}
	all, err := deploy.Deployments(deploy.Content{Spec: spec, Text: []byte(twoClouds), Secrets: func(string) (string, error) { return "key", nil }}, have)
	if err != nil {
		t.Fatal(err)
	}
	config := all["lb-us-east-1-0"].Units[0].Files["balancer/config.yaml"]
	for _, want := range []string{"listen: 127.0.0.1:8001", "admin: 127.0.0.1:8101", "url: https://127.0.0.1:8201"} {
		if !strings.Contains(config, want) {
			t.Errorf("the balancer's configuration lacks %q:\n%s", want, config)
		}
	}
	if front := all["us-east-1-0"].Proxy; front == nil || front.Listen != "127.0.0.1:8201" {
		t.Errorf("the replica's front is %+v, want 127.0.0.1:8201", front)
	}
	if got := deploy.PublicURL(spec, have[0]); got != "http://127.0.0.1:8001" {
		t.Errorf("clients are sent to %s", got)
	}
}
