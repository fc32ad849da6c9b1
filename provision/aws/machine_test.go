package aws_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// launchPrerequisites launches the prerequisites of machines of both roles, in one region.
func launchPrerequisites(t testing.TB, p provision.Provider, region service.Region) {
	t.Helper()
	launch(t, p,
		roleFor(provision.RoleBalancer, provision.GrantOperate), roleFor(provision.RoleReplica),
		firewall(region, provision.RoleBalancer), firewall(region, provision.RoleReplica))
}

// Every capacity error code is a CapacityError with the correct scope, is not retried, and creates nothing.
func TestCapacityErrorScopes(t *testing.T) {
	for code, want := range map[string]provision.CapacityScope{
		"InsufficientInstanceCapacity":         provision.ScopeZone,
		"InsufficientHostCapacity":             provision.ScopeZone,
		"InsufficientCapacity":                 provision.ScopeZone,
		"InsufficientReservedInstanceCapacity": provision.ScopeZone,
		"UnfulfillableCapacity":                provision.ScopeZone,
		"ReservationCapacityExceeded":          provision.ScopeZone,
		"InsufficientFreeAddressesInSubnet":    provision.ScopeZone,
		"Unsupported":                          provision.ScopeZone,
		"SpotMaxPriceTooLow":                   provision.ScopeZone,
		"MaxSpotInstanceCountExceeded":         provision.ScopeQuota,
		"MaxFleetCountExceeded":                provision.ScopeQuota,
		"VcpuLimitExceeded":                    provision.ScopeQuota,
		"InstanceLimitExceeded":                provision.ScopeQuota,
		"InsufficientAddressCapacity":          provision.ScopeZone,
		"InsufficientVolumeCapacity":           provision.ScopeZone,
		"VolumeLimitExceeded":                  provision.ScopeQuota,
		"MaxIOPSLimitExceeded":                 provision.ScopeQuota,
		"NetworkInterfaceLimitExceeded":        provision.ScopeQuota,
	} {
		t.Run(code, func(t *testing.T) {
			f := &testcloud.Faults{}
			cloud := newCloud(f)
			cloud.CapacityErrorCode = func(_, _, _ string) string { return code }
			p := open(t, cloud)
			launchPrerequisites(t, p, east)
			w := machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot)
			_, err := p.Launch(t.Context(), w)
			var refused *provision.CapacityError
			if !errors.As(err, &refused) || refused.Scope != want || refused.Code != code || refused.Offering != w.Offerings[0] {
				t.Fatalf("got %v, want a refusal of the %s", err, want)
			}
			if n := f.CallCounts()["ec2:RunInstances"]; n != 1 || len(cloud.Machines()) != 0 {
				t.Errorf("called %d times, created %d machines", n, len(cloud.Machines()))
			}
			w.Offerings[0].Zone = ""
			if _, err = p.Launch(t.Context(), w); want == provision.ScopeZone && (!errors.As(err, &refused) || refused.Scope != provision.ScopeRegion) {
				t.Errorf("without a zone: got %v, want a refusal of the region", err)
			}
		})
	}
}

// A lack of capacity in a zone falls back to the next zone; an exceeded quota does not.
func TestLaunchFallsBackToNextZone(t *testing.T) {
	cloud := newCloud(nil)
	cloud.CapacityErrorCode = func(zone, _, _ string) string {
		if zone == "us-east-1b" {
			return "InsufficientInstanceCapacity"
		}
		return ""
	}
	cloud.QuotaLimits = map[string]float64{"L-DB2E81BA": 4, "L-3819A6DF": 0}
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	var wants []provision.Desired
	for n := range 2 {
		w := machine(fmt.Sprintf("us-east-1-%d", n), provision.KindReplica, east, service.CapacityOnDemand)
		spot, other := w.Offerings[0], w.Offerings[0]
		spot.Capacity, other.Zone = service.CapacitySpot, "us-east-1a"
		w.Offerings = provision.Offerings{spot, w.Offerings[0], other}
		wants = append(wants, w)
	}
	_, err := provision.Apply(t.Context(), provision.Diff(wants, nil), p, provision.ApplyOptions{Parallel: 1})
	var none *provision.AllOfferingsExhaustedError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "VcpuLimitExceeded") {
		t.Fatalf("got %v, want no room for one of the two", err)
	}
	if m := cloud.Machines(); len(m) != 1 || m[0].Zone != "us-east-1a" || m[0].Market != "on_demand" {
		t.Errorf("created %+v, want one on demand in us-east-1a", m)
	}
}

// Machines with A100 are launched like others. On demand they count against the quota of all P instances, as
// spot against their own.
func TestA100Quotas(t *testing.T) {
	for _, tt := range []struct {
		capacity service.CapacityType
		quota    string
	}{{service.CapacityOnDemand, "L-417A185B"}, {service.CapacitySpot, "L-7212CCBC"}} {
		for _, limit := range []float64{96, 95} {
			cloud := newCloud(nil)
			cloud.QuotaLimits = map[string]float64{"L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 1000}
			cloud.QuotaLimits[tt.quota] = limit
			p := open(t, cloud)
			launchPrerequisites(t, p, east)
			offers, err := p.Offerings(t.Context(), east)
			if err != nil {
				t.Fatal(err)
			}
			w := machine("us-east-1-0", provision.KindReplica, east, tt.capacity)
			w.Offerings = offers.WithGPU("A100", 8).SortedByCapacity([]service.CapacityType{tt.capacity})[:1]
			_, err = p.Launch(t.Context(), w)
			var refused *provision.CapacityError
			if limit == 96 && (err != nil || len(cloud.Machines()) != 1 || w.Offerings[0].Type != "p4d.24xlarge") {
				t.Errorf("%s: %v, %+v of %s", tt.capacity, err, cloud.Machines(), w.Offerings)
			}
			if limit == 95 && (!errors.As(err, &refused) || refused.Scope != provision.ScopeQuota) {
				t.Errorf("%s with 95 vCPUs of 96: got %v, want a refusal by the quota", tt.capacity, err)
			}
		}
	}
}

// The request contains the whole configuration, independent of EC2's defaults.
func TestLaunchRequest(t *testing.T) {
	cloud := newCloud(nil)
	cloud.AddReservation("us-east-1", "cr-mine", "us-east-1b", "g6.xlarge", 1, false)
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	spot := machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot)
	reserved := machine("us-east-1-1", provision.KindReplica, east, service.CapacityReserved)
	reserved.Offerings[0].Reservation = "cr-mine"
	committed := machine("us-east-1-2", provision.KindReplica, east, service.CapacityReserved)
	balancer := machine("lb-us-east-1-0", provision.KindBalancer, east, service.CapacityOnDemand)
	balancer.ImmutableHash, balancer.BuildHash = "fixed", "build"
	launch(t, p, spot, reserved, committed, balancer)
	common := map[string]string{
		"MinCount": "1", "MaxCount": "1", "InstanceInitiatedShutdownBehavior": "terminate",
		"MetadataOptions.HttpTokens": "required", "MetadataOptions.HttpPutResponseHopLimit": "1",
		"NetworkInterface.1.AssociatePublicIpAddress": "true", "NetworkInterface.1.SubnetId": "subnet-us-east-1b",
		"BlockDeviceMapping.1.Ebs.VolumeSize": "250", "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
		"UserData": base64.StdEncoding.EncodeToString([]byte("#cloud-config\n")),
	}
	for id, special := range map[string]map[string]string{
		"us-east-1-0": {
			"ImageId":      "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
			"InstanceType": "g6.xlarge", "BlockDeviceMapping.1.Ebs.Throughput": "500", "InstanceMarketOptions.MarketType": "spot", "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
			"IamInstanceProfile.Name": "skyserve-chat-replica", "CapacityReservationSpecification.CapacityReservationPreference": "",
		},
		"us-east-1-1": {"InstanceMarketOptions.MarketType": "", "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId": "cr-mine"},
		"us-east-1-2": {"CapacityReservationSpecification.CapacityReservationPreference": "open"},
		"lb-us-east-1-0": {
			"ImageId":      "resolve:ssm:/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
			"InstanceType": "c7i.large", "BlockDeviceMapping.1.Ebs.Throughput": "", "IamInstanceProfile.Name": "skyserve-chat-balancer", "CapacityReservationSpecification.CapacityReservationPreference": "none",
		},
	} {
		i := slices.IndexFunc(cloud.Machines(), func(m testcloud.AWSMachine) bool { return m.Tags["skyserve:id"] == id })
		request := cloud.Machines()[i].Request
		want := maps.Clone(common)
		maps.Copy(want, special)
		for key, value := range want {
			if request[key] != value {
				t.Errorf("%s: %s is %q, want %q", id, key, request[key], value)
			}
		}
		if len(request["ClientToken"]) == 0 || len(request["ClientToken"]) > 64 {
			t.Errorf("%s: the client token is %q", id, request["ClientToken"])
		}
	}
	tags := cloud.Machines()[3].Tags
	want := map[string]string{
		"Name": "chat/lb-us-east-1-0", "skyserve:service": "chat", "skyserve:owner": "me", "skyserve:id": "lb-us-east-1-0", "skyserve:kind": "balancer",
		"skyserve:spec": "m1", "skyserve:fixed": "fixed", "skyserve:build": "build", "skyserve:capacity": "on_demand", "skyserve:price": "0.08925",
		"skyserve:label:role": "balancer", "skyserve:label:model": "org/llama",
	}
	if !maps.Equal(tags, want) {
		t.Errorf("tags are %q, want %q", tags, want)
	}
}

// A listed machine has its offering, its cost and its addresses.
func TestListReturnsMachineDetails(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	w := machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot)
	w.CostPerHour = 0.37
	launch(t, p, w)
	list(t, p) // it is running
	have := list(t, p)
	i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == w.ID })
	o := have[i]
	want := provision.Offering{
		Type: "g6.xlarge", Region: east, Zone: "us-east-1b", Capacity: service.CapacitySpot, GPU: "L4", GPUs: 1, VCPUs: 4,
		PricePerHour: 0.37, PriceSource: "price at launch",
	}
	if o.Offering == nil || *o.Offering != want || o.CostPerHour != 0.37 {
		t.Errorf("it runs on %+v for %v, want %+v", o.Offering, o.CostPerHour, want)
	}
	if o.Address != "http://"+o.PublicIP.String() || !o.PublicIP.IsValid() || !o.PrivateIP.IsPrivate() || o.Started.IsZero() || o.Labels["model"] != "org/llama" {
		t.Errorf("it is reached at %q (%s, %s) with labels %q, since %v", o.Address, o.PublicIP, o.PrivateIP, o.Labels, o.Started)
	}
}

// The fingerprint of a machine is the last one that it wrote to its console under its name.
func TestFingerprintFromConsole(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	launch(t, p, machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot))
	o := only(list(t, p), "us-east-1-0")[0]
	first, second := strings.Repeat("a", 52), strings.Repeat("b", 52)
	name := identity.Name{Service: "chat", Role: identity.Replica, ID: "us-east-1-0"}
	other := identity.Name{Service: "chat", Role: identity.Balancer, ID: "us-east-1-0"}
	for _, step := range []struct{ print, want string }{
		{"", ""}, {"[    0.000000] Linux version 6.8\n", ""}, {"\n" + agent.ConsoleLine(name, first), first}, {agent.ConsoleLine(other, second), first}, {agent.ConsoleLine(name, second), second},
	} {
		cloud.WriteConsole(o.Handle, step.print)
		if got, err := p.Fingerprint(t.Context(), o); got != step.want || err != nil {
			t.Errorf("after %q: got %q, %v, want %q", step.print, got, err, step.want)
		}
	}
	o.Handle = "i-0"
	if _, err := p.Fingerprint(t.Context(), o); err == nil || !strings.Contains(err.Error(), "reading the console of us-east-1-0 (i-0) in aws/us-east-1: ec2:GetConsoleOutput: InvalidInstanceID.NotFound") {
		t.Errorf("of a machine that is not there: %v", err)
	}
}

// A machine that ended is launched again, whether or not EC2 still lists the earlier one.
func TestLaunchAfterTermination(t *testing.T) {
	for name, end := range map[string]func(*testcloud.AWS, string){
		"interrupted by the cloud":       (*testcloud.AWS).InterruptInstance,
		"terminated by hand":             (*testcloud.AWS).TerminateInstance,
		"and no longer in EC2's lists":   func(c *testcloud.AWS, id string) { c.TerminateInstance(id); c.RemoveEndedInstances() },
		"interrupted, and lists do lag":  (*testcloud.AWS).InterruptInstance,
		"stopped by hand, then replaced": (*testcloud.AWS).StopInstance,
	} {
		t.Run(name, func(t *testing.T) {
			f := &testcloud.Faults{}
			cloud := newCloud(f)
			p := open(t, cloud)
			launchPrerequisites(t, p, east)
			w := machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot)
			for range 3 {
				launch(t, p, w)
				if strings.Contains(name, "lag") {
					f.StaleLists = 1
				}
				end(cloud, cloud.Machines()[0].ID)
				list(t, p)
				if changes := provision.Diff([]provision.Desired{w}, only(list(t, p), w.ID)); len(changes) != 1 || changes[0].Action != provision.ActionLaunch {
					t.Fatalf("after its end there is to do: %+v, want a launch", changes)
				}
				for _, o := range only(list(t, p), w.ID) { // the stopped machine is removed
					if err := p.Terminate(t.Context(), o); err != nil {
						t.Fatal(err)
					}
				}
			}
			launch(t, p, w)
			launch(t, p, w)
			if m := cloud.Machines(); len(m) != 1 || m[0].State == "stopped" {
				t.Errorf("there is %+v, want one that runs", m)
			}
		})
	}
}

// If `up` and the controller launch a machine at the same time, with prices of different sources, one machine
// is created.
func TestLaunchIsIdempotentAcrossPrices(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{StaleLists: 3})
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	w := machine("us-east-1-0", provision.KindReplica, east, service.CapacityOnDemand)
	first, err := p.Launch(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	w.CostPerHour *= 1.1
	again, err := open(t, cloud).Launch(t.Context(), w)
	if m := cloud.Machines(); err != nil || again.Handle != first.Handle || len(m) != 1 {
		t.Errorf("launched %s, then %s (%v); there are %d", first.Handle, again.Handle, err, len(m))
	}
}

// only returns the objects with an id.
func only(have []provision.Object, id string) []provision.Object {
	return slices.DeleteFunc(have, func(o provision.Object) bool { return o.ID != id })
}

// A replacement may run at the same time as the replaced machine.
func TestLaunchReplacementBesideOldMachine(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	w := machine("lb-us-east-1-0", provision.KindBalancer, east, service.CapacityOnDemand)
	launch(t, p, w)
	next := w
	next.SpecHash = "m2"
	launch(t, p, next, next)
	var specs []string
	for _, o := range only(list(t, p), w.ID) {
		specs = append(specs, o.SpecHash)
	}
	if slices.Sort(specs); !slices.Equal(specs, []string{"m1", "m2"}) {
		t.Errorf("there are %q, want the old one and one new one", specs)
	}
}

// The error of an invalid launch contains the reason, in one line.
func TestLaunchErrorMessages(t *testing.T) {
	good := func() provision.Desired {
		return machine("us-east-1-0", provision.KindReplica, east, service.CapacityOnDemand)
	}
	for want, change := range map[string]func(*provision.Desired, *testcloud.AWS){
		`finding region "aws/eu-west-9": this provider is configured for us-east-1, us-west-2`: func(w *provision.Desired, _ *testcloud.AWS) { w.Region = "aws/eu-west-9" },
		"launching us-east-1-0 in aws/us-east-1: reading the desired machine: number of offerings must be 1, got 0": func(w *provision.Desired, _ *testcloud.AWS) {
			w.Offerings = nil
		},
		"user data is limited to 16384 bytes, got 20000": func(w *provision.Desired, _ *testcloud.AWS) {
			w.Machine.UserData = strings.Repeat("x", 20000)
		},
		"on_demand g99.metal in us-east-1b: ec2:RunInstances: InvalidParameterValue: Invalid value 'g99.metal' for InstanceType.": func(w *provision.Desired, _ *testcloud.AWS) {
			w.Offerings[0].Type = "g99.metal"
		},
		"the default VPC vpc-us-east-1 has no default subnet there; create one with `aws ec2 create-default-subnet --availability-zone us-east-1b`": func(_ *provision.Desired, c *testcloud.AWS) {
			c.RemoveDefaultSubnet("us-east-1", "us-east-1b")
		},
		"finding the default VPC of us-west-2: not found; set regions[].network, or create one with `aws ec2 create-default-vpc --region us-west-2`": func(w *provision.Desired, c *testcloud.AWS) {
			c.RemoveDefaultNetwork("us-west-2")
			w.Region = west
		},
		"finding security group skyserve-chat-replica: not found; run 'skyserve up' to create the replica firewall of service chat": func(w *provision.Desired, _ *testcloud.AWS) {
			w.Region, w.Offerings[0].Zone = west, "us-west-2a"
		},
		"configuration and role are required": func(w *provision.Desired, _ *testcloud.AWS) { w.Machine = nil },
	} {
		t.Run(want, func(t *testing.T) {
			cloud := newCloud(nil)
			launchPrerequisites(t, open(t, cloud), east)
			w := good()
			change(&w, cloud)
			_, err := open(t, cloud).Launch(t.Context(), w)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

// A service name of another owner is rejected, and nothing is created.
func TestLaunchRejectsNameOfAnotherOwner(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	launch(t, p, chat()...)
	before := cloud.RemainingResources()
	for _, w := range chat() {
		w.Owner = "they"
		_, err := open(t, cloud).Launch(t.Context(), w)
		var owned *provision.OwnedError
		if !errors.As(err, &owned) || owned.Owner != "me" || owned.Resource != "service chat" {
			t.Errorf("%s: got %v, want an OwnedError of owner me", w.ID, err)
		}
	}
	if after := cloud.RemainingResources(); !slices.Equal(before, after) {
		t.Errorf("there was %q, there is %q", before, after)
	}
}

// The names of all boot images exist: the emulated cloud has an independent list of published names.
func TestBootImagesArePublished(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	launch(t, p, machine("lb-us-east-1-0", provision.KindBalancer, east, service.CapacityOnDemand), machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot))
	unknown := machine("us-east-1-1", provision.KindReplica, east, service.CapacitySpot)
	unknown.Machine.Images = map[string]string{"gpu": "resolve:ssm:/aws/service/deeplearning/ami/x86_64/no-such-image/latest/ami-id"}
	if _, err := p.Launch(t.Context(), unknown); err == nil || !strings.Contains(err.Error(), "aliases are invalid") {
		t.Errorf("unpublished image: got %v, want EC2's error about the parameter", err)
	}
}
