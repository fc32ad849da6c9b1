package aws_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// officeCloud is a region without a default network. It has another network with public and private subnets
// in two availability zones.
func officeCloud() *testcloud.AWS {
	cloud := newCloud(nil)
	cloud.RemoveDefaultNetwork("us-east-1")
	cloud.AddNetwork("us-east-1", "vpc-0ff1ce00",
		testcloud.Subnet{ID: "subnet-0000000a", Zone: "us-east-1a", Gateway: "igw-0ff1ce"},
		testcloud.Subnet{ID: "subnet-0000000b", Zone: "us-east-1b", Gateway: "igw-0ff1ce"},
		testcloud.Subnet{ID: "subnet-000000bb", Zone: "us-east-1b", Gateway: "igw-0ff1ce"},
		testcloud.Subnet{ID: "subnet-0000000d", Zone: "us-east-1a", Gateway: "nat-0ff1ce"},
		testcloud.Subnet{ID: "subnet-0000000e", Zone: "us-east-1a"},
	)
	cloud.AddNetwork("us-east-1", "vpc-00000bad", testcloud.Subnet{ID: "subnet-00000bad", Zone: "us-east-1c", Gateway: "igw-bad"})
	return cloud
}

// within returns a provider whose machines are in a network.
func within(t *testing.T, cloud *testcloud.AWS, machinesOnly bool, vpc string, subnets ...string) *aws.Provider {
	t.Helper()
	c := config(cloud, "us-east-1")
	c.MachinesOnly = machinesOnly
	if vpc != "" {
		c.Networks = map[string]provision.Network{"us-east-1": {Name: vpc, Subnets: subnets}}
	}
	p, err := aws.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Machines are launched in the configured subnets, behind firewalls of their network. Only the availability
// zones of these subnets have offerings.
func TestNamedNetwork(t *testing.T) {
	cloud := officeCloud()
	p := within(t, cloud, false, "vpc-0ff1ce00", "subnet-0000000b", "subnet-0000000a")
	offers, err := p.Offerings(t.Context(), east)
	if err != nil {
		t.Fatal(err)
	}
	zones := map[string]bool{}
	for _, o := range offers {
		zones[o.Zone] = true
	}
	if len(zones) != 2 || !zones["us-east-1a"] || !zones["us-east-1b"] {
		t.Errorf("offers are in %v, want zones a and b", zones)
	}
	anywhere := machine("us-east-1-9", provision.KindReplica, east, service.CapacityOnDemand)
	anywhere.Offerings[0].Zone = ""
	wants := append(chat(), anywhere)
	launch(t, p, wants...)
	for _, m := range cloud.Machines() {
		want := map[string]string{"us-east-1a": "subnet-0000000a", "us-east-1b": "subnet-0000000b"}[m.Zone]
		if got := m.Request["NetworkInterface.1.SubnetId"]; got != want || got == "" {
			t.Errorf("%s is in %q, want %q", m.Tags["skyserve:id"], got, want)
		}
	}
	if changes := provision.Diff(wants, list(t, p)); len(changes) != 0 {
		t.Errorf("there is still to do: %+v", changes)
	}
	for _, f := range p.Doctor(t.Context()) {
		if !f.OK {
			t.Errorf("doctor: %+v", f)
		}
	}
	machines := within(t, cloud, true, "vpc-0ff1ce00", "subnet-0000000b", "subnet-0000000a")
	cloud.DenialCode = func(_, action string) string {
		if action == "ec2:DescribeRouteTables" {
			return "UnauthorizedOperation"
		}
		return ""
	}
	launch(t, machines, machine("us-east-1-8", provision.KindReplica, east, service.CapacitySpot))
	if _, err := provision.Apply(t.Context(), provision.Diff(nil, list(t, p)), p, provision.ApplyOptions{}); err != nil || len(cloud.RemainingResources()) != 0 {
		t.Errorf("%v, and there is %q", err, cloud.RemainingResources())
	}
}

// A configured network that does not match EC2 is rejected with the reason, before anything is created.
func TestNetworkErrors(t *testing.T) {
	for want, named := range map[string][]string{
		"network: VPC vpc-0dead000 not found in this region":                                                                          {"vpc-0dead000", "subnet-0000000a"},
		"subnets: subnet subnet-0dead000 not found in this region":                                                                    {"vpc-0ff1ce00", "subnet-0000000a", "subnet-0dead000"},
		"subnets: subnet-00000bad must be in VPC vpc-0ff1ce00, is in vpc-00000bad":                                                    {"vpc-0ff1ce00", "subnet-00000bad"},
		"subnets: subnet-0000000b and subnet-000000bb are both in availability zone us-east-1b; set one subnet per availability zone": {"vpc-0ff1ce00", "subnet-0000000b", "subnet-000000bb"},
		"subnets: subnet-0000000d has no route to an internet gateway (route table rtb-subnet-0000000d): the public addresses":        {"vpc-0ff1ce00", "subnet-0000000b", "subnet-0000000d"},
		"subnets: subnet-0000000e has no route to an internet gateway (route table rtb-vpc-0ff1ce00): the public addresses":           {"vpc-0ff1ce00", "subnet-0000000e"},
	} {
		cloud := officeCloud()
		p := within(t, cloud, false, named[0], named[1:]...)
		_, err := p.Offerings(t.Context(), east)
		var unfit *provision.SpecError
		if !errors.As(err, &unfit) || !strings.Contains(err.Error(), "reading regions[] of aws/us-east-1: "+want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := p.Launch(t.Context(), firewall(east, provision.RoleReplica)); !errors.As(err, &unfit) || len(cloud.RemainingResources()) != 0 {
			t.Errorf("a firewall: %v, and there is %q", err, cloud.RemainingResources())
		}
	}
	p := within(t, officeCloud(), true, "vpc-0ff1ce00", "subnet-0000000a")
	_, err := p.Launch(t.Context(), machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot))
	if want := "reading regions[] of aws/us-east-1: subnets: no subnet in availability zone us-east-1b"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A service that moves to another network leaves no objects in the earlier one.
func TestMoveToAnotherNetwork(t *testing.T) {
	cloud := newCloud(nil)
	cloud.AddNetwork("us-east-1", "vpc-0ff1ce00", testcloud.Subnet{ID: "subnet-0000000b", Zone: "us-east-1b", Gateway: "igw-0ff1ce"})
	launch(t, within(t, cloud, false, ""), chat()...)
	p := within(t, cloud, false, "vpc-0ff1ce00", "subnet-0000000b")
	wants := chat()
	for i := range wants {
		if wants[i].Kind != provision.KindIdentity {
			wants[i].SpecHash += " in vpc-0ff1ce00" // as in the layout
		}
	}
	for range 2 { // the second call finds the remaining objects of the first
		if _, err := provision.Apply(t.Context(), provision.Diff(wants, list(t, p)), p, provision.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if changes := provision.Diff(wants, list(t, p)); len(changes) != 0 {
		t.Errorf("there is still to do: %+v", changes)
	}
	var groups []string
	for _, o := range list(t, p) {
		if o.Kind == provision.KindFirewall {
			groups = append(groups, o.ID)
		}
	}
	if len(groups) != 2 {
		t.Errorf("there are the firewalls %q", groups)
	}
	for _, m := range cloud.Machines() {
		if !slices.Contains([]string{"subnet-0000000b"}, m.Request["NetworkInterface.1.SubnetId"]) {
			t.Errorf("%s is still in %s", m.Tags["skyserve:id"], m.Request["NetworkInterface.1.SubnetId"])
		}
	}
}
