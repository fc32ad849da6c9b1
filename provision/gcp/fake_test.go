package gcp_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/gcp"
	"skyserve/provision/record"
)

// TestMain records the calls to the emulated cloud, if the environment requires it.
func TestMain(m *testing.M) {
	if err := record.Start("go test", "test"); err != nil {
		panic(err)
	}
	testkit.CollectRarely()
	goleak.VerifyTestMain(m)
}

// newGCE returns a fake in which the commands of `doctor` for the service chat were executed.
func newGCE(faults *testcloud.Faults) *testcloud.GCE {
	g := testcloud.NewGCE("p", faults)
	if err := g.RunGcloud(accountSetup()); err != nil {
		panic(err)
	}
	return g
}

// accountSetup returns the commands that `doctor` prints for the service chat if its service account does not
// exist.
var accountSetup = sync.OnceValue(func() string { return accountSetupFor("chat") })

// accountSetupFor returns the same commands for another service.
func accountSetupFor(name string) string {
	g := testcloud.NewGCE("p", nil)
	g.FailCalls("resourcemanager.projects.getIamPolicy", http.StatusForbidden, "forbidden", "not yours to see") // then doctor prints the commands once
	cfg := config(g)
	cfg.Service = name
	for _, f := range gcp.New(cfg).Doctor(context.Background()) {
		if strings.Contains(f.Message, "account not found") {
			return f.Hint
		}
	}
	panic("doctor prints no commands for the service account")
}

// provider returns a provider for a fake.
func provider(g *testcloud.GCE) *gcp.Provider { return gcp.New(config(g)) }

func config(g *testcloud.GCE) gcp.Config {
	return gcp.Config{Project: "p", Service: "chat", Endpoint: "http://gce", Transport: testcloud.HandlerTransport{Handler: g}, Poll: -1}
}

const here service.Region = "gcp/us-central1"

// offer is an offering of us-central1-a.
func offer(kind string, capacity service.CapacityType) provision.Offering {
	t, _ := provision.MachineTypeOf(service.CloudGCP, kind)
	return t.Offering(here, "us-central1-a", capacity)
}

// replica returns a desired machine of the service chat with an L4.
func replica(id string, capacity service.CapacityType) provision.Desired {
	return provision.Desired{
		ID: id, Kind: provision.KindReplica, Service: "chat", Owner: "Ab:12", Region: here, SpecHash: "s1", ImmutableHash: "f1",
		Labels: map[string]string{"model": "meta-llama/Llama-3.1-8B-Instruct"}, CostPerHour: 0.5,
		Offerings: provision.Offerings{offer("g2-standard-4", capacity)},
		Machine:   &provision.MachineConfig{Role: provision.RoleReplica, UserData: "#cloud-config\n", DiskGiB: 100},
	}
}

func balancer(id string) provision.Desired {
	return provision.Desired{
		ID: id, Kind: provision.KindBalancer, Service: "chat", Owner: "Ab:12", Region: here, SpecHash: "s2",
		Offerings: provision.Offerings{offer("e2-standard-2", service.CapacityOnDemand)},
		Machine:   &provision.MachineConfig{Role: provision.RoleBalancer, UserData: "#cloud-config\n"},
	}
}

func firewall(role provision.ObjectKind, rules ...provision.FirewallRule) provision.Desired {
	return provision.Desired{
		ID: "firewall-us-central1-" + string(role), Kind: provision.KindFirewall, Service: "chat", Owner: "Ab:12", Region: here,
		SpecHash: fmt.Sprint("f", rules), Rules: rules, Labels: map[string]string{"role": string(role)},
	}
}

func identity() provision.Desired {
	return provision.Desired{
		ID: "identity-gcp-balancer", Kind: provision.KindIdentity, Service: "chat", Owner: "Ab:12", Region: "gcp/global", SpecHash: "i1",
		Grants: []provision.Grant{provision.GrantOperate}, Labels: map[string]string{"role": "balancer"},
	}
}

// chat is a small service, prerequisites first.
func chat() []provision.Desired {
	return []provision.Desired{
		firewall(provision.KindBalancer, provision.FirewallRule{Port: 8000, From: provision.FromWorld}),
		firewall(provision.KindReplica, provision.FirewallRule{Port: 8300, From: provision.FromBalancers}),
		identity(), balancer("lb-us-central1-0"), replica("us-central1-0", service.CapacitySpot),
	}
}

func launched(t *testing.T, p *gcp.Provider, w provision.Desired) provision.Object {
	t.Helper()
	o, err := p.Launch(t.Context(), w)
	if err != nil {
		t.Fatalf("launching %s: %v", w.ID, err)
	}
	return o
}

// byHand sends a request for the project p without the provider.
func byHand(t *testing.T, g *testcloud.GCE, path, body string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://gce/compute/v1/projects/p/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := (testcloud.HandlerTransport{Handler: g}).RoundTrip(r); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer, err)
	}
}
