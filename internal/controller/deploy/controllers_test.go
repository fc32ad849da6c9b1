package deploy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// balancersIn returns a service with one balancer in each place on this computer, and its machines. Those in
// old were launched by a version without members of a store.
func balancersIn(t *testing.T, places string, old ...string) (*service.Spec, string, []provision.Object) {
	t.Helper()
	text := "name: chat\nmodels: [{name: org/m, engine: {kind: sim}}]\nregions:\n"
	var have []provision.Object
	for n, place := range strings.Fields(places) {
		text += fmt.Sprintf("  - {name: local/%s, replicas: {min: 1, max: 2}}\n", place)
		at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", 9000+offset+n) }
		own := provision.Addresses{Public: at(0), Admin: at(100), Agent: at(500), Store: at(300), Routes: at(305)}
		if slices.Contains(old, place) {
			own.Routes = ""
		}
		loopback := netip.MustParseAddr("127.0.0.1")
		have = append(have, provision.Object{
			ID: "lb-" + place + "-0", Kind: provision.KindBalancer, Service: "chat", Region: service.Region("local/" + place), PublicIP: loopback, PrivateIP: loopback,
			Endpoints: provision.MachineEndpoints{Advertised: own, Listen: own, Loopback: "127.0.0.1", Controller: at(310)},
		})
	}
	return parse(t, text), text, have
}

// controllersIn returns a line for each controller: its machine, and the members of its store's cluster.
func controllersIn(t *testing.T, all map[string]agent.Deployment) (lines []string) {
	t.Helper()
	for id, d := range all {
		for _, u := range d.Units {
			if u.Name != deploy.UnitController {
				continue
			}
			var c service.ControllerConfig
			if err := yaml.UnmarshalWithOptions([]byte(u.Files["controller/config.yaml"]), &c, yaml.Strict()); err != nil {
				t.Fatal(err)
			}
			line := id
			if m := c.StoreCluster; m != nil {
				line += " of " + strings.Join(m.Members, ",")
				if c.ID != id || !slices.Equal(c.Controllers, m.Members) || len(m.Routes) < 2 {
					t.Errorf("%s: got id %s, controllers %q, cluster %+v", id, c.ID, c.Controllers, m)
				}
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// Three machines run a controller with a member of the store; fewer run one with a single store, which never
// moves. A cluster begins once all of its machines exist, and keeps its members while some are lost.
func TestControlPlane(t *testing.T) {
	const three = "lb-asia-0 of lb-asia-0,lb-eu-0,lb-us-0; lb-eu-0 of lb-asia-0,lb-eu-0,lb-us-0; lb-us-0 of lb-asia-0,lb-eu-0,lb-us-0"
	for _, tt := range []struct {
		name, places, old, lost, dead, running, want string
	}{
		{name: "one region", places: "us", want: "lb-us-0"},
		{name: "two regions", places: "us eu", want: "lb-us-0"},
		{name: "two regions, the second has the store", places: "us eu", running: "lb-eu-0", want: "lb-eu-0"},
		{name: "from three regions to two, the first keeps the store", places: "us eu", running: "lb-asia-0 lb-eu-0 lb-us-0", want: "lb-us-0"},
		{name: "from three regions to two, the second is first in the file", places: "eu us", running: "lb-asia-0 lb-eu-0 lb-us-0", want: "lb-eu-0"},
		{name: "from three regions to two, the first machine is lost", places: "us eu", running: "lb-asia-0 lb-eu-0 lb-us-0", lost: "us", want: "lb-eu-0"},
		{name: "a store whose process has ended stays", places: "us eu", running: "lb-us-0", dead: "us", want: "lb-us-0"},
		{name: "three regions", places: "us eu asia", want: three},
		{name: "a dead process stays a member", places: "us eu asia", running: "lb-us-0 lb-eu-0 lb-asia-0", dead: "eu", want: three},
		{name: "while a cluster begins", places: "us eu asia", running: "lb-us-0", lost: "eu asia", want: "lb-us-0"},
		{name: "a cluster that lacks a machine", places: "us eu asia", running: "lb-us-0 lb-eu-0 lb-asia-0", lost: "asia", want: "lb-eu-0 of lb-asia-0,lb-eu-0,lb-us-0; lb-us-0 of lb-asia-0,lb-eu-0,lb-us-0"},
		{name: "a cluster that lacks two machines", places: "us eu asia", running: "lb-us-0 lb-eu-0", lost: "eu asia", want: "lb-us-0 of lb-asia-0,lb-eu-0,lb-us-0"},
		{name: "machines of an earlier version", places: "us eu asia", old: "eu", want: "lb-us-0"},
		{name: "a fourth region takes the place", places: "us eu asia sa", old: "eu", want: "lb-asia-0 of lb-asia-0,lb-sa-0,lb-us-0; lb-sa-0 of lb-asia-0,lb-sa-0,lb-us-0; lb-us-0 of lb-asia-0,lb-sa-0,lb-us-0"},
	} {
		spec, text, have := balancersIn(t, tt.places, strings.Fields(tt.old)...)
		have = slices.DeleteFunc(have, func(o provision.Object) bool { return slices.Contains(strings.Fields(tt.lost), o.Region.ShortName()) })
		for i := range have {
			if have[i].Region.ShortName() == tt.dead {
				have[i].TerminatedReason = "process exited"
			}
		}
		c := withBundle(t)
		c.Spec, c.SpecYAML, c.Enrolled, c.Controllers = spec, []byte(text), nil, strings.Fields(tt.running)
		if got := strings.Join(controllersIn(t, deployments(t, c, have)), "; "); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// With an existing NATS cluster there are controllers only.
func TestControlPlaneOfExternalStore(t *testing.T) {
	spec, text, have := balancersIn(t, "us eu asia")
	spec.Store.URL = "nats://store.example.com:4222"
	c := withBundle(t)
	c.Spec, c.SpecYAML, c.Enrolled = spec, []byte(text), nil
	if got := strings.Join(controllersIn(t, deployments(t, c, have)), "; "); got != "lb-asia-0; lb-eu-0; lb-us-0" {
		t.Errorf("got %s", got)
	}
}

// Every client of the store knows all members, its own machine's first.
func TestBalancersKnowAllMembers(t *testing.T) {
	spec, text, have := balancersIn(t, "us eu asia sa")
	c := withBundle(t)
	c.Spec, c.SpecYAML, c.Enrolled = spec, []byte(text), nil
	all := deployments(t, c, have)
	for id, want := range map[string]string{
		"lb-eu-0": "tls://127.0.0.1:9301,tls://127.0.0.1:9302,tls://127.0.0.1:9300",
		"lb-sa-0": "tls://127.0.0.1:9302,tls://127.0.0.1:9301,tls://127.0.0.1:9300",
	} {
		var b service.BalancerConfig
		if err := yaml.UnmarshalWithOptions([]byte(all[id].Units[0].Files["balancer/config.yaml"]), &b, yaml.Strict()); err != nil {
			t.Fatal(err)
		}
		if b.StoreURL != want {
			t.Errorf("%s: got %s, want %s", id, b.StoreURL, want)
		}
	}
}

// Members reach each other at private addresses inside a network, which is regional at AWS and global at Google, and at
// public ones elsewhere: firewalls admit these.
func TestRoutesInClouds(t *testing.T) {
	const text = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models: [{name: org/m, engine: {kind: sim}, gpus: [{type: L4}]}]
regions: [{name: aws/us-east-1, balancers: 2}, {name: gcp/us-central1}, {name: gcp/europe-west4}]
`
	for running, want := range map[string]map[string]string{
		"lb-us-east-1-0 lb-us-east-1-1 lb-us-central1-0": {
			"lb-us-east-1-0": "198.18.0.3:8420 10.0.0.2:8420", "lb-us-east-1-1": "198.18.0.3:8420 10.0.0.1:8420", "lb-us-central1-0": "198.18.0.1:8420 198.18.0.2:8420",
		},
		"lb-us-east-1-0 lb-us-central1-0 lb-europe-west4-0": {
			"lb-us-east-1-0": "198.18.0.4:8420 198.18.0.3:8420", "lb-us-central1-0": "10.0.0.4:8420 198.18.0.1:8420", "lb-europe-west4-0": "10.0.0.3:8420 198.18.0.1:8420",
		},
	} {
		var have []provision.Object
		for i, id := range []string{"lb-us-east-1-0", "lb-us-east-1-1", "lb-us-central1-0", "lb-europe-west4-0"} {
			region := service.Region("gcp/" + id[3:len(id)-2])
			if i < 2 {
				region = "aws/us-east-1"
			}
			have = append(have, provision.Object{
				ID: id, Kind: provision.KindBalancer, Service: "chat", Region: region,
				PublicIP: netip.AddrFrom4([4]byte{198, 18, 0, byte(i + 1)}), PrivateIP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}),
			})
		}
		c := withBundle(t)
		c.Spec, c.SpecYAML, c.Enrolled, c.Controllers, c.Secrets = parse(t, text), []byte(text), nil, strings.Fields(running), deploy.LocalSecrets
		for id, d := range deployments(t, c, have) {
			for _, u := range d.Units {
				if u.Name != deploy.UnitController {
					continue
				}
				var config service.ControllerConfig
				if err := yaml.UnmarshalWithOptions([]byte(u.Files["controller/config.yaml"]), &config, yaml.Strict()); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(config.StoreCluster.Routes, " "); got != want[id] || !strings.HasPrefix(config.StoreCluster.Listen, "10.0.0.") {
					t.Errorf("%s of %s: got %s at %s, want %s", id, running, got, config.StoreCluster.Listen, want[id])
				}
			}
		}
	}
}

// Until a balancer reports it, the store of one balancer is not replicated, and that of three is starting: 'status'
// right after 'up' does not claim that a copy is missing.
func TestStoreBeforeItIsReported(t *testing.T) {
	for places, want := range map[string]string{"us": "not replicated", "us eu": "not replicated", "us eu asia": "starting"} {
		spec, _, have := balancersIn(t, places)
		if got := deploy.UnreportedStore(spec, have); got != want {
			t.Errorf("%s: got %q, want %q", places, got, want)
		}
		spec.Store.URL = "nats://127.0.0.1:4222"
		if got := deploy.UnreportedStore(spec, have); got != "external" {
			t.Errorf("%s with a URL: got %q", places, got)
		}
	}
}
