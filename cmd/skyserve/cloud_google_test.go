package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/provision/cloud"
)

const googleService = `
name: chat
models:
  - name: m
    engine: {kind: sim, speed: 100}
    gpus: [{type: L4}]
regions:
  - name: gcp/us-central1
    capacity: [spot, on_demand]
    network: prod
    subnets: [west]
balancer:
  auth: {keys_from: env:KEYS}
  insecure: true
gcp: {balancer_account: lb@p.iam.gserviceaccount.com}
`

// A project without a default network and without a service account for machines, as many
// organisations require.
func TestServiceInProjectWithoutDefaults(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.gce.SetNetworks()
	e.gce.SetDefaultServiceAccount("")
	up := append(e.upOf(strings.NewReplacer("    network: prod\n", "", "    subnets: [west]\n", "", "gcp: {balancer_account: lb@p.iam.gserviceaccount.com}\n", "").Replace(googleService)), "--yes")
	if output := e.skyserve(exitPartial, up...); !strings.Contains(output, "referenced network resource cannot be found. (set regions[].network to an existing network)") {
		t.Errorf("without a network:\n%s", output)
	}
	e.gce.SetSubnets("prod", "us-central1", "east", "west")
	up = append(e.upOf(googleService), "--yes")
	doctor := e.at("doctor", up[1], "--program", up[3])
	output := e.skyserve(exitFailed, doctor...)
	if !strings.Contains(output, "account not found") {
		t.Errorf("without the account:\n%s", output)
	}
	if output := e.skyserve(exitCredentials, up...); !strings.Contains(output, "gcloud iam service-accounts create lb --project p") || len(e.gce.Instances()) > 0 {
		t.Errorf("up without the account: %d machines\n%s", len(e.gce.Instances()), output)
	}
	if err := e.gce.RunGcloud(output); err != nil { // run the printed commands
		t.Fatal(err)
	}
	e.skyserve(exitOK, doctor...)
	e.skyserve(exitOK, up...)
	for _, i := range e.gce.Instances() {
		if nic := i.NetworkInterfaces[0]; !strings.HasSuffix(nic.Network, "/prod") || !strings.HasSuffix(nic.Subnet, "/us-central1/subnetworks/west") {
			t.Errorf("%s is in %+v", i.Name, nic)
		}
		isBalancer := strings.Contains(i.Name, "-lb-")
		if isBalancer != (len(i.ServiceAccounts) == 1) || isBalancer && i.ServiceAccounts[0].Email != "lb@p.iam.gserviceaccount.com" {
			t.Errorf("%s runs as %+v", i.Name, i.ServiceAccounts)
		}
	}
	e.skyserve(exitOK, e.at("down", "chat", "--yes")...)
	if n, f := len(e.gce.Instances()), len(e.gce.Firewalls()); n+f > 0 {
		t.Errorf("%d machines and %d rules remain", n, f)
	}
}

// A cloud handler that acts for a controller in another cloud uses the networks and accounts of the service.
func TestControllerReceivesNetworks(t *testing.T) {
	spec, err := service.Parse("service.yaml", []byte(strings.Replace(googleService, "regions:\n", "regions:\n  - {name: aws/us-east-1, network: vpc-0a1b2c3d, subnets: [subnet-0a1b2c3d]}\n  - {name: aws/eu-west-1}\n", 1)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(cloudAccess{Networks: networksOf(spec), Accounts: spec.GCP})
	if err != nil {
		t.Fatal(err)
	}
	var m cloudAccess
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if got, want := cloud.GoogleAccounts(m.specOf(nil)), cloud.GoogleAccounts(spec); len(want) == 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("accounts: got %v, want %v", got, want)
	}
	for _, name := range cloud.Clouds(spec) {
		got, want := cloud.NamedNetworks(m.specOf(cloud.ManagedRegions(spec)), name), cloud.NamedNetworks(spec, name)
		if len(want) != 1 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
