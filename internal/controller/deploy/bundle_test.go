package deploy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// withBundle is the content of a service with a controller.
func withBundle(t *testing.T) deploy.DeploymentInput {
	c := content(t)
	c.Bundle = &deploy.ControllerBundle{Certificate: []byte("OWN"), DelegatedCA: []byte("ISSUER"), CloudConfig: json.RawMessage(`{"program":"p"}`)}
	return c
}

func deployments(t *testing.T, c deploy.DeploymentInput, have []provision.Object) map[string]agent.Deployment {
	t.Helper()
	all, err := deploy.Deployments(c, have)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// writeBundle writes the files of a controller's unit as its machine does, and returns their folder.
func writeBundle(t *testing.T, d agent.Deployment) string {
	t.Helper()
	i := slices.IndexFunc(d.Units, func(u agent.Unit) bool { return u.Name == "controller" })
	if i < 0 {
		t.Fatalf("no controller in %+v", d.Units)
	}
	dir := t.TempDir()
	for path, text := range d.Units[i].Files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "controller")
}

func TestControllersRunOnThreeMachines(t *testing.T) {
	all := deployments(t, withBundle(t), testMachines())
	for id, d := range all {
		if err := d.Check(); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		if has := len(d.Units) > 1; has != provision.IsBalancerID(id) {
			t.Errorf("%s runs %d units", id, len(d.Units))
		}
	}
	u := all["lb-us-east-1-0"].Units[1]
	var c service.ControllerConfig
	if err := yaml.UnmarshalWithOptions([]byte(u.Files["controller/config.yaml"]), &c, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if c.StoreListen != "10.0.0.1:8400" || c.StoreDir != "controller/store" || c.Listen != "127.0.0.1:8410" || u.ReadinessURL != "http://127.0.0.1:8410/healthz" ||
		c.Identity.Cert != "controller/controller.pem" || u.Files[c.Identity.Cert] != "OWN" || u.Files["controller/issuer.pem"] != "ISSUER" {
		t.Errorf("got %+v", c)
	}
	var admins, replicas []string
	for _, b := range c.Balancers {
		admins = append(admins, b.ID+" "+b.Admin)
	}
	for _, r := range c.Replicas {
		replicas = append(replicas, strings.TrimSpace(r.ID+" of "+r.Primary+" "+string(r.Region)+" "+r.RemoteURL))
	}
	if want := []string{"lb-europe-west4-0 https://203.0.113.3:8100", "lb-us-east-1-0 https://10.0.0.1:8100", "lb-us-east-1-1 https://203.0.113.2:8100"}; !slices.Equal(admins, want) {
		t.Errorf("balancers: got %q, want %q", admins, want)
	}
	want := []string{
		"europe-west4-0 of lb-europe-west4-0 gcp/europe-west4",
		"us-east-1-0 of lb-us-east-1-0 aws/us-east-1 https://203.0.113.11:8300",
		"paris-10-0-0-7-8000 of lb-us-east-1-0 static/paris",
		"us-east-1-qwen-0 of lb-us-east-1-1 aws/us-east-1 https://203.0.113.12:8300",
	}
	if !slices.Equal(replicas, want) {
		t.Errorf("replicas: got %q, want %q", replicas, want)
	}
}

func TestBalancersUseControllersStore(t *testing.T) {
	store := func(d agent.Deployment) string {
		var c service.BalancerConfig
		if err := yaml.UnmarshalWithOptions([]byte(d.Units[0].Files["balancer/config.yaml"]), &c, yaml.Strict()); err != nil {
			t.Fatal(err)
		}
		if c.StoreMTLS {
			return "ours " + c.StoreURL
		}
		return c.StoreURL
	}
	named := withBundle(t)
	spec := *named.Spec
	named.Spec, spec.Store.URL = &spec, "nats://store.example.com:4222"
	away := slices.DeleteFunc(testMachines(), func(o provision.Object) bool { return o.ID == "lb-us-east-1-0" })
	for _, tt := range []struct {
		name     string
		content  deploy.DeploymentInput
		have     []provision.Object
		balancer string
		want     string
	}{
		{"on its machine", withBundle(t), testMachines(), "lb-us-east-1-0", "ours tls://10.0.0.1:8400,tls://203.0.113.2:8400,tls://203.0.113.3:8400"},
		{"elsewhere", withBundle(t), testMachines(), "lb-us-east-1-1", "ours tls://10.0.0.2:8400,tls://203.0.113.1:8400,tls://203.0.113.3:8400"},
		{"an external store", named, testMachines(), "lb-us-east-1-1", "nats://store.example.com:4222"},
		{"while its machine is missing", withBundle(t), away, "lb-us-east-1-1", ""},
		{"without a controller", content(t), testMachines(), "lb-us-east-1-1", ""},
	} {
		if got := store(deployments(t, tt.content, tt.have)[tt.balancer]); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if files := deployments(t, named, testMachines())["lb-us-east-1-0"].Units[1].Files; strings.Contains(files["controller/config.yaml"], "store_listen") {
		t.Error("the controller serves an unused store")
	}
}

// A controller builds the same deployments from its bundle as `up`: otherwise they would undo each
// other's changes forever.
func TestBundleYieldsSameDeployments(t *testing.T) {
	have := testMachines()
	obtains := contentWithACME(t, "email: ops@example.com, ca: \"https://ca.example.com\", root: /etc/mine.crt, eab: {key_id: k, hmac: env:HF_TOKEN}")
	obtains.Bundle = withBundle(t).Bundle
	pinned := withBundle(t)
	pinned.Images = deploy.Images{"vllm/vllm-openai:v0.33.0": "vllm/vllm-openai:v0.33.0@sha256:" + strings.Repeat("0a", 32)}
	for _, content := range []deploy.DeploymentInput{withBundle(t), obtains, pinned} {
		all := deployments(t, content, have)
		c, otherClouds, err := deploy.ReadBundle(writeBundle(t, all["lb-us-east-1-0"]))
		if err != nil {
			t.Fatal(err)
		}
		own := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.Region.Cloud() != service.CloudAWS })
		if again := deployments(t, c, slices.Concat(own, otherClouds)); !reflect.DeepEqual(again, all) {
			t.Errorf("got %+v\nwant %+v", again, all)
		}
		if value, err := c.Secrets("env:NONE"); err == nil {
			t.Errorf("a secret outside the bundle is %q", value)
		}
	}
}

// Machines pull the recorded digest of an image, and another digest changes the hash of the inputs.
func TestMachinesPullRecordedDigests(t *testing.T) {
	const tag = "vllm/vllm-openai:v0.33.0"
	pinned := tag + "@sha256:" + strings.Repeat("0a", 32)
	c := withBundle(t)
	before := deployments(t, c, testMachines())
	c.Images = deploy.Images{tag: pinned}
	after := deployments(t, c, testMachines())
	for d, want := range map[*agent.Unit]string{&before["us-east-1-0"].Units[0]: tag, &after["us-east-1-0"].Units[0]: pinned} {
		if d.Image != want {
			t.Errorf("the machine pulls %q, want %q", d.Image, want)
		}
	}
	for _, id := range []string{"us-east-1-0", "lb-us-east-1-0"} {
		if before[id].Revision == after[id].Revision {
			t.Errorf("%s has the same revision with another image", id)
		}
	}
}

func TestReadBundleRejectsDamage(t *testing.T) {
	for _, name := range []string{"content.json", "service.yaml", "controller.pem", "issuer.pem"} {
		dir := writeBundle(t, deployments(t, withBundle(t), testMachines())["lb-us-east-1-0"])
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := deploy.ReadBundle(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// Balancers do not use a draining replica; its machine keeps its deployment.
func TestDrainingReplicaIsNotConfigured(t *testing.T) {
	c := withBundle(t)
	c.Draining = map[string]bool{"us-east-1-0": true}
	all := deployments(t, c, testMachines())
	for _, u := range all["lb-us-east-1-0"].Units {
		if config := u.Files[u.Name+"/config.yaml"]; config == "" || strings.Contains(config, "10.0.0.11") {
			t.Errorf("the %s still uses it: %s", u.Name, config)
		}
	}
	if !reflect.DeepEqual(all["us-east-1-0"], deployments(t, withBundle(t), testMachines())["us-east-1-0"]) {
		t.Error("the deployment of its machine changed")
	}
}
