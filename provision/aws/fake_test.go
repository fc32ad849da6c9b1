package aws_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"go.uber.org/goleak"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/aws"
	"skyserve/provision/record"
)

// TestMain clears the AWS settings of the environment. It records the calls to the emulated cloud, if the
// environment requires it.
func TestMain(m *testing.M) {
	for _, setting := range os.Environ() {
		if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "AWS_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	if err := record.Start("go test", "test"); err != nil {
		panic(err)
	}
	testkit.CollectRarely()
	goleak.VerifyTestMain(m)
}

const (
	east  = service.Region("aws/us-east-1")
	west  = service.Region("aws/us-west-2")
	world = service.Region("aws/global")
)

// config returns the configuration of a provider for a fake, without pauses.
func config(cloud *testcloud.AWS, regions ...string) aws.Config {
	return aws.Config{
		Regions: regions, Transport: testcloud.HandlerTransport{Handler: cloud}, Poll: -1, Binaries: true,
		Credentials: credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", ""),
	}
}

// httpClient sends calls to a fake.
func httpClient(cloud *testcloud.AWS) *http.Client {
	return &http.Client{Transport: testcloud.HandlerTransport{Handler: cloud}}
}

// open returns a provider for a fake.
func open(t testing.TB, cloud *testcloud.AWS) *aws.Provider {
	t.Helper()
	p, err := aws.New(t.Context(), config(cloud, "us-east-1", "us-west-2"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newCloud returns a fake with the regions of open.
func newCloud(f *testcloud.Faults) *testcloud.AWS {
	return testcloud.NewAWS(f, "us-east-1", "us-west-2")
}

// roleFor and firewall return the prerequisites of machines of a role.
func roleFor(role provision.Role, grants ...provision.Grant) provision.Desired {
	return provision.Desired{
		ID: "identity-aws-" + string(role), Kind: provision.KindIdentity, Service: "chat", Owner: "me", Region: world,
		SpecHash: "i1", Labels: map[string]string{"role": string(role)}, Grants: grants,
	}
}

func firewall(region service.Region, role provision.Role, rules ...provision.FirewallRule) provision.Desired {
	return provision.Desired{
		ID: "firewall-" + region.ShortName() + "-" + string(role), Kind: provision.KindFirewall, Service: "chat", Owner: "me", Region: region,
		SpecHash: "f1", Labels: map[string]string{"role": string(role)}, Rules: rules,
	}
}

// machine returns a desired VM of a role: a replica unless kind is another kind.
func machine(id string, kind provision.ObjectKind, region service.Region, capacity service.CapacityType) provision.Desired {
	name := "c7i.large"
	if kind == provision.KindReplica {
		name = "g6.xlarge"
	}
	known, _ := provision.MachineTypeOf(service.CloudAWS, name)
	offer := known.Offering(region, region.ShortName()+"b", capacity)
	return provision.Desired{
		ID: id, Kind: kind, Service: "chat", Owner: "me", Region: region, SpecHash: "m1",
		Labels:    map[string]string{"role": string(kind), "model": "org/llama"},
		Machine:   &provision.MachineConfig{Role: provision.Role(kind), UserData: "#cloud-config\n", DiskGiB: 250},
		Offerings: provision.Offerings{offer}, CostPerHour: offer.PricePerHour,
	}
}

// chat is a small service: a balancer and two replicas, with their prerequisites.
func chat() []provision.Desired {
	return []provision.Desired{
		roleFor(provision.RoleBalancer, provision.GrantOperate),
		roleFor(provision.RoleReplica),
		firewall(east, provision.RoleBalancer, provision.FirewallRule{Port: 8000, From: provision.FromWorld}),
		firewall(east, provision.RoleReplica, provision.FirewallRule{Port: 8300, From: provision.FromBalancers}),
		machine("lb-us-east-1-0", provision.KindBalancer, east, service.CapacityOnDemand),
		machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot),
		machine("us-east-1-1", provision.KindReplica, east, service.CapacityOnDemand),
	}
}

// launch launches desired objects.
func launch(t testing.TB, p provision.Provider, wants ...provision.Desired) {
	t.Helper()
	for _, w := range wants {
		if _, err := p.Launch(t.Context(), w); err != nil {
			t.Fatalf("launching %s: %v", w.ID, err)
		}
	}
}

// list lists the existing objects.
func list(t testing.TB, p provision.Provider) []provision.Object {
	t.Helper()
	have, err := p.List(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	return have
}
