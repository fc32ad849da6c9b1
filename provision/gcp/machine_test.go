package gcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

func TestCapacityErrorScopes(t *testing.T) {
	const (
		noNetwork  = "The resource 'projects/p/global/networks/default' was not found"
		noNetwork2 = "Invalid value for field 'resource.networkInterfaces[0].network': 'https://www.googleapis.com/compute/v1/projects/p/global/networks/default'. The referenced network resource cannot be found."
		family     = "Quota 'GPUS_PER_GPU_FAMILY' exceeded.  Limit: 0.0 in region us-central1.\n\tmetric name = compute.googleapis.com/gpus_per_gpu_family\n\tlimit name = GPUS-PER-GPU-FAMILY-per-project-region"
	)
	for _, tt := range []struct {
		code, message string
		status        int // of an immediate error; 0 = the operation fails
		want          provision.CapacityScope
	}{
		{"ZONE_RESOURCE_POOL_EXHAUSTED", "not enough resources", 0, provision.ScopeZone},
		{"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "not enough resources", 0, provision.ScopeZone},
		{"UNSUPPORTED_OPERATION", "not in this zone", 0, provision.ScopeZone},
		{"insufficientCapacity", "no capacity", 409, provision.ScopeZone},
		{"RESOURCE_NOT_READY", "not ready", 0, provision.ScopeZone},
		{"resourceNotReady", "not ready", 400, provision.ScopeZone},
		{"RESOURCE_OPERATION_RATE_EXCEEDED", "too many operations", 0, provision.ScopeZone},
		{"QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-central1.", 0, provision.ScopeQuota},
		{"quotaExceeded", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-central1.", 403, provision.ScopeQuota},
		{"QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", 0, provision.ScopeCloud},
		{"quotaExceeded", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", 403, provision.ScopeCloud},
		{"QUOTA_EXCEEDED", family, 0, provision.ScopeQuota},
		{"quotaExceeded", "Quota 'CPUS_ALL_REGIONS' exceeded.  Limit: 12.0 globally.", 403, provision.ScopeCloud},
		{"RESOURCE_POOL_EXHAUSTED", "not enough resources", 0, provision.ScopeZone},
		{"STOCKOUT", "not enough resources", 0, provision.ScopeZone},
		{"IP_SPACE_EXHAUSTED", "IP space of 'projects/p/regions/us-central1/subnetworks/default' is exhausted.", 0, provision.ScopeRegion},
		{"IP_SPACE_EXHAUSTED_WITH_DETAILS", "Instance 'x' creation failed: IP space is exhausted.", 0, provision.ScopeRegion},
		{"notFound", noNetwork, 404, provision.ScopeCloud},
		{"invalid", noNetwork2, 400, provision.ScopeCloud},
		{"RESOURCE_NOT_FOUND", noNetwork, 0, provision.ScopeCloud},
		{"INTERNAL_ERROR", "an internal error", 0, ""},
		{"invalid", "Invalid value for field 'resource.name'", 400, ""},
	} {
		for _, stays := range []bool{false, true} {
			g := newGCE(nil)
			if tt.status != 0 {
				g.FailCalls("compute.instances.insert", tt.status, tt.code, tt.message)
			} else {
				g.FailOperations("compute.instances.insert", testcloud.GCEFailure{Code: tt.code, Message: tt.message, KeepInstance: stays})
			}
			w := replica("us-central1-0", service.CapacitySpot)
			_, err := provider(g).Launch(t.Context(), w)
			var refused *provision.CapacityError
			switch {
			case tt.want == "" && (err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), tt.message)):
				t.Errorf("%s: got %v, want an error that is not about capacity", tt.code, err)
			case tt.want != "" && (!errors.As(err, &refused) || refused.Scope != tt.want || refused.Offering != w.Offerings[0]):
				t.Errorf("%s: got %+v, want a refusal of the %s", tt.code, err, tt.want)
			}
			if left := g.Instances(); len(left) != 0 {
				t.Errorf("%s (%t): remaining: %+v", tt.code, stays, left)
			}
		}
	}
}

// Consecutive launches use up the stock and the quotas of a zone.
func TestLaunchFallsBackToNextOffering(t *testing.T) {
	g := newGCE(nil)
	g.SetStock("us-central1-a", "g2-standard-4", "SPOT", 1)
	g.SetQuota("us-central1", "NVIDIA_L4_GPUS", 1)
	var wants []provision.Desired
	for _, id := range []string{"us-central1-0", "us-central1-1", "us-central1-2"} {
		w := replica(id, service.CapacitySpot)
		w.Offerings = append(w.Offerings, offer("g2-standard-4", service.CapacityOnDemand))
		wants = append(wants, w)
	}
	_, err := provision.Apply(t.Context(), provision.Diff(wants, nil), provider(g), provision.ApplyOptions{Parallel: 1})
	var none *provision.AllOfferingsExhaustedError
	if !errors.As(err, &none) || len(none.Attempted)+len(none.Skipped) != 2 {
		t.Errorf("got %v, want no capacity for one of them", err)
	}
	var models []string
	for _, i := range g.Instances() {
		models = append(models, i.Scheduling.ProvisioningModel)
	}
	slices.Sort(models)
	if !slices.Equal(models, []string{"SPOT", "STANDARD"}) {
		t.Errorf("got %v", models)
	}
}

// Machines with A100 are launched on demand and as spot machines, and have their own quotas.
func TestA100Quotas(t *testing.T) {
	for _, capacity := range []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot} {
		g := newGCE(nil)
		g.SetQuota("us-central1", "NVIDIA_A100_GPUS", 1)
		g.SetQuota("us-central1", "PREEMPTIBLE_NVIDIA_A100_GPUS", 1)
		offers, err := provider(g).Offerings(t.Context(), here)
		if err != nil {
			t.Fatal(err)
		}
		w := replica("us-central1-0", capacity)
		w.Offerings = offers.WithGPU("A100", 1).SortedByCapacity([]service.CapacityType{capacity})[:1]
		launched(t, provider(g), w)
		w.ID = "us-central1-1"
		_, err = provider(g).Launch(t.Context(), w)
		var refused *provision.CapacityError
		if !errors.As(err, &refused) || refused.Scope != provision.ScopeQuota {
			t.Errorf("%s: beyond the quota got %v", capacity, err)
		}
		if i := g.Instances(); len(i) != 1 || !strings.HasSuffix(i[0].MachineType, "/a2-highgpu-1g") {
			t.Errorf("%s: launched %+v", capacity, i)
		}
	}
}

// Machines use the network of service.yaml, with its configured subnets or, in automatic mode, its own.
func TestMachineNetwork(t *testing.T) {
	for _, tt := range []struct {
		name     string
		subnets  map[string]string
		set      func(g *testcloud.GCE)
		subnet   string
		problems string
	}{
		{"automatic", nil, func(g *testcloud.GCE) { g.SetNetworks("prod") }, "prod", ""},
		{"custom", map[string]string{"us-central1": "west"}, func(g *testcloud.GCE) { g.SetSubnets("prod", "us-central1", "east", "west") }, "west", ""},
		{"custom mode without subnets", nil, func(g *testcloud.GCE) { g.SetSubnets("prod", "us-central1", "west") }, "", "set regions[].subnets"},
		{"unknown subnet", map[string]string{"us-central1": "north"}, func(g *testcloud.GCE) { g.SetSubnets("prod", "us-central1", "west") }, "", "set regions[].subnets"},
		{"unknown network", nil, func(g *testcloud.GCE) { g.SetNetworks("default") }, "", "set regions[].network"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGCE(nil)
			tt.set(g)
			cfg := config(g)
			cfg.Network, cfg.Subnets = "prod", tt.subnets
			p := gcp.New(cfg)
			var err error
			for _, w := range chat() {
				if _, err = p.Launch(t.Context(), w); err != nil {
					break
				}
			}
			var spec *provision.SpecError
			if tt.problems != "" {
				if !errors.As(err, &spec) || !strings.Contains(err.Error(), tt.problems) {
					t.Errorf("got %v, want an error of configuration with %q", err, tt.problems)
				}
				return
			}
			if err != nil || len(g.Instances()) != 2 {
				t.Fatalf("got %v, %+v", err, g.Instances())
			}
			for _, i := range g.Instances() {
				if nic := i.NetworkInterfaces[0]; !strings.HasSuffix(nic.Network, "/networks/prod") || !strings.HasSuffix(nic.Subnet, "/us-central1/subnetworks/"+tt.subnet) {
					t.Errorf("got %+v", nic)
				}
			}
			for _, f := range g.Firewalls() {
				if !strings.HasSuffix(f.Network, "/networks/prod") {
					t.Errorf("got %+v", f)
				}
			}
		})
	}
}

// A firewall cannot be moved to another network, because running machines would lose it.
func TestNetworkCannotChange(t *testing.T) {
	g := newGCE(nil)
	g.SetNetworks("default", "prod")
	for _, w := range chat() {
		launched(t, provider(g), w)
	}
	before := state(g)
	cfg := config(g)
	cfg.Network = "prod"
	p := gcp.New(cfg)
	have, err := p.List(t.Context(), "chat")
	if err != nil || len(have) != len(chat()) {
		t.Fatalf("got %+v, %v", have, err)
	}
	_, err = provision.Apply(t.Context(), provision.Diff(chat(), have), p, provision.ApplyOptions{})
	var spec *provision.SpecError
	if !errors.As(err, &spec) || !strings.Contains(err.Error(), "down") || state(g) != before {
		t.Errorf("got %v and\n%s", err, state(g))
	}
	for _, o := range have {
		if err := p.Terminate(t.Context(), o); err != nil {
			t.Error(err)
		}
	}
	if left := state(g); left != "" {
		t.Errorf("remaining:\n%s", left)
	}
}

// An offering without a zone is attempted in each zone of its region.
func TestLaunchWithoutZone(t *testing.T) {
	g := newGCE(nil)
	g.SetStock("us-central1-a", "g2-standard-4", "STANDARD", 0)
	w := replica("us-central1-0", service.CapacityOnDemand)
	w.Offerings[0].Zone = ""
	o := launched(t, provider(g), w)
	if o.Offering.Zone != "us-central1-b" || o.Region != here {
		t.Errorf("got %+v", o)
	}
	g.SetStock("us-central1-b", "g2-standard-4", "STANDARD", 0)
	g.SetStock("us-central1-c", "g2-standard-4", "STANDARD", 0)
	w.ID = "us-central1-1"
	_, err := provider(g).Launch(t.Context(), w)
	var refused *provision.CapacityError
	if !errors.As(err, &refused) || refused.Scope != provision.ScopeRegion || refused.Offering.Zone != "" {
		t.Errorf("got %+v, want a refusal of the region", err)
	}
}

func TestLaunchScheduling(t *testing.T) {
	held := offer("g2-standard-4", service.CapacityReserved)
	held.Reservation = "mine"
	for _, tt := range []struct {
		offer       provision.Offering
		scheduling  string
		reservation string
	}{
		{offer("g2-standard-4", service.CapacitySpot), `{"provisioningModel":"SPOT","instanceTerminationAction":"STOP","onHostMaintenance":"TERMINATE","automaticRestart":false}`, `{"consumeReservationType":"NO_RESERVATION"}`},
		{offer("g2-standard-4", service.CapacityOnDemand), `{"provisioningModel":"STANDARD","onHostMaintenance":"TERMINATE","automaticRestart":true}`, `{"consumeReservationType":"NO_RESERVATION"}`},
		{offer("e2-standard-2", service.CapacityOnDemand), `{"provisioningModel":"STANDARD","onHostMaintenance":"MIGRATE","automaticRestart":true}`, `{"consumeReservationType":"NO_RESERVATION"}`},
		{offer("g2-standard-4", service.CapacityReserved), `{"provisioningModel":"STANDARD","onHostMaintenance":"TERMINATE","automaticRestart":true}`, `{"consumeReservationType":"ANY_RESERVATION"}`},
		{offer("a3-highgpu-1g", service.CapacitySpot), `{"provisioningModel":"SPOT","instanceTerminationAction":"STOP","onHostMaintenance":"TERMINATE","automaticRestart":false}`, `{"consumeReservationType":"NO_RESERVATION"}`},
		{offer("a3-highgpu-8g", service.CapacityOnDemand), `{"provisioningModel":"STANDARD","onHostMaintenance":"TERMINATE","automaticRestart":true}`, `{"consumeReservationType":"NO_RESERVATION"}`},
		{held, `{"provisioningModel":"STANDARD","onHostMaintenance":"TERMINATE","automaticRestart":true}`, `{"consumeReservationType":"SPECIFIC_RESERVATION","key":"compute.googleapis.com/reservation-name","values":["mine"]}`},
	} {
		t.Run(tt.offer.String(), func(t *testing.T) {
			g := newGCE(nil)
			w := replica("us-central1-0", service.CapacitySpot)
			w.Offerings = provision.Offerings{tt.offer}
			launched(t, provider(g), w)
			i := g.Instances()[0]
			scheduling, _ := json.Marshal(i.Scheduling)
			reservation, _ := json.Marshal(i.ReservationAffinity)
			if string(scheduling) != tt.scheduling || string(reservation) != tt.reservation {
				t.Errorf("got %s and %s", scheduling, reservation)
			}
		})
	}
}

func TestLaunchRequestPerRole(t *testing.T) {
	g := newGCE(nil)
	p := provider(g)
	b, r := launched(t, p, balancer("lb-us-central1-0")), launched(t, p, replica("us-central1-0", service.CapacitySpot))
	all := g.Instances()
	lb := all[slices.IndexFunc(all, func(i testcloud.GCEInstance) bool { return strings.Contains(i.Name, "-lb-") })]
	gpu := all[slices.IndexFunc(all, func(i testcloud.GCEInstance) bool { return !strings.Contains(i.Name, "-lb-") })]
	if got := lb.ServiceAccounts; len(got) != 1 || got[0].Email != accountOfBalancers || !slices.Equal(got[0].Scopes, []string{"https://www.googleapis.com/auth/compute", "https://www.googleapis.com/auth/cloud-billing.readonly", "https://www.googleapis.com/auth/devstorage.read_only"}) {
		t.Errorf("a balancer runs as %+v", got)
	}
	w := replica("us-central1-1", service.CapacitySpot)
	w.Machine.Account = "x@p.iam.gserviceaccount.com"
	g.CreateServiceAccount(w.Machine.Account)
	launched(t, p, w)
	for _, i := range g.Instances() {
		if got := i.ServiceAccounts; strings.Contains(i.Name, "us-central1-1-") && (len(got) != 1 || got[0].Email != w.Machine.Account || !slices.Equal(got[0].Scopes, []string{"https://www.googleapis.com/auth/cloud-platform"})) {
			t.Errorf("a replica with an account runs as %+v", got)
		}
	}
	if len(gpu.ServiceAccounts) != 0 {
		t.Errorf("a replica runs as %+v", gpu.ServiceAccounts)
	}
	for _, of := range []struct {
		o provision.Object
		i testcloud.GCEInstance
	}{{b, lb}, {r, gpu}} {
		nic := of.i.NetworkInterfaces[0]
		if of.o.PublicIP.String() != nic.AccessConfigs[0].NatIP || of.o.PrivateIP.String() != nic.NetworkIP {
			t.Errorf("got the addresses %s and %s of %+v", of.o.PublicIP, of.o.PrivateIP, nic)
		}
	}
	if d := gpu.Disks[0]; !d.AutoDelete || d.InitializeParams.DiskSizeGB != "100" || !strings.Contains(d.InitializeParams.SourceImage, "nvidia") {
		t.Errorf("a replica boots %+v", d)
	}
	for _, i := range []testcloud.GCEInstance{lb, gpu} {
		if script := i.Metadata.Items[3]; script.Key != "startup-script" || !strings.Contains(script.Value, "cloud-init") {
			t.Errorf("an image without cloud-init does %+v", script)
		}
	}
	if !slices.Contains(gpu.Metadata.Items, testcloud.GCEMetadataItem{Key: "install-nvidia-driver", Value: "True"}) {
		t.Errorf("metadata %+v, want the request to install the driver", gpu.Metadata.Items)
	}
	if gpu.Metadata.Items[1] != (testcloud.GCEMetadataItem{Key: "user-data", Value: "#cloud-config\n"}) {
		t.Errorf("a replica has the metadata %+v", gpu.Metadata)
	}
	if r.CostPerHour != 0.5 || r.Labels["model"] != "meta-llama/Llama-3.1-8B-Instruct" || *r.Offering != offer("g2-standard-4", service.CapacitySpot) || r.Started.IsZero() {
		t.Errorf("got %+v", r)
	}
}

// Fingerprint returns the fingerprint that the machine's agent published.
func TestFingerprintFromGuestAttributes(t *testing.T) {
	g := newGCE(nil)
	p := provider(g)
	o := launched(t, p, replica("us-central1-0", service.CapacitySpot))
	if key, err := p.Fingerprint(t.Context(), o); err != nil || key != "" {
		t.Errorf("before it is written: got %q, %v", key, err)
	}
	g.SetGuestAttribute(g.Instances()[0].Name, "skyserve/fingerprint", "abc234\n")
	if key, err := p.Fingerprint(t.Context(), o); err != nil || key != "abc234" {
		t.Errorf("got %q, %v", key, err)
	}
	if err := p.Terminate(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if key, err := p.Fingerprint(t.Context(), o); err == nil {
		t.Errorf("deleted machine: got %q", key)
	}
}

func TestStoppedMachineIsReplaced(t *testing.T) {
	for _, tt := range []struct {
		name     string
		capacity service.CapacityType
		happens  func(g *testcloud.GCE, name string)
		want     string
	}{
		{"preempted", service.CapacitySpot, func(g *testcloud.GCE, name string) { g.PreemptInstance(name) }, "interrupted: the cloud reclaimed the spot machine"},
		{"stopped manually", service.CapacityOnDemand, func(g *testcloud.GCE, name string) { g.SetInstanceStatus(name, "TERMINATED") }, "stopped"},
		{"suspended manually", service.CapacityOnDemand, func(g *testcloud.GCE, name string) { g.SetInstanceStatus(name, "SUSPENDED") }, "suspended"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGCE(nil)
			p, w := provider(g), replica("us-central1-0", tt.capacity)
			before := launched(t, p, w)
			tt.happens(g, g.Instances()[0].Name)
			have, err := p.List(t.Context(), "chat")
			if err != nil || len(have) != 1 || have[0].TerminatedReason != tt.want || have[0].Interrupted != (tt.capacity == service.CapacitySpot) {
				t.Fatalf("got %+v, %v", have, err)
			}
			after := launched(t, p, w)
			if len(g.Instances()) != 1 || after.Handle == before.Handle || after.TerminatedReason != "" {
				t.Errorf("got %+v of %+v", after, g.Instances())
			}
			if err := p.Terminate(t.Context(), before); err != nil || len(g.Instances()) != 1 {
				t.Errorf("terminating the one before took the one after: %v, %+v", err, g.Instances())
			}
			tt.happens(g, g.Instances()[0].Name)
			w.SpecHash, w.ImmutableHash = "s9", "f9"
			launched(t, p, w)
			if len(g.Instances()) != 1 {
				t.Errorf("the replaced machine remains: %+v", g.Instances())
			}
		})
	}
}

// Two machines with one id exist while one replaces the other.
func TestReplacementRunsBesideOldMachine(t *testing.T) {
	g := newGCE(nil)
	p, w := provider(g), replica("us-central1-0", service.CapacitySpot)
	before := launched(t, p, w)
	w.SpecHash, w.ImmutableHash = "s9", "f9"
	after := launched(t, p, w)
	if before.Handle == after.Handle || len(g.Instances()) != 2 {
		t.Fatalf("got %+v", g.Instances())
	}
	if err := p.Terminate(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	if have, err := p.List(t.Context(), "chat"); err != nil || len(have) != 1 || have[0].SpecHash != "s9" {
		t.Errorf("got %+v, %v", have, err)
	}
}

func TestObjectsOfAnotherOwnerAreKept(t *testing.T) {
	for _, first := range chat() {
		t.Run(first.ID, func(t *testing.T) {
			g := newGCE(nil)
			p := provider(g)
			launched(t, p, first)
			before := state(g)
			for _, w := range chat() {
				w.Owner = "other"
				_, err := p.Launch(t.Context(), w)
				var owned *provision.OwnedError
				// only machines reach this point: a firewall was rejected before
				isMachine := func(w provision.Desired) bool { return w.Machine != nil }
				if !errors.As(err, &owned) && (!isMachine(w) || isMachine(first)) {
					t.Errorf("%s: got %v", w.ID, err)
				}
				if isMachine(w) && !isMachine(first) {
					break
				}
			}
			if isMachine := first.Machine != nil; isMachine && state(g) != before {
				t.Errorf("got\n%s\nwant\n%s", state(g), before)
			}
		})
	}
}

// Names of two owners conflict even before lists contain the other owner's objects.
func TestNamesOfTwoOwnersCollide(t *testing.T) {
	g := newGCE(&testcloud.Faults{StaleLists: 100})
	w := firewall(provision.KindReplica)
	launched(t, provider(g), w)
	before := state(g)
	w.Owner = "other"
	_, err := provider(g).Launch(t.Context(), w)
	var owned *provision.OwnedError
	if !errors.As(err, &owned) || owned.Owner != "Ab:12" || state(g) != before {
		t.Errorf("got %v and\n%s", err, state(g))
	}
}

// A manually created machine with a name of skyserve is not listed, and not deleted.
func TestForeignMachineIsKept(t *testing.T) {
	g := newGCE(nil)
	w := replica("us-central1-0", service.CapacitySpot)
	launched(t, provider(g), w)
	name := g.Instances()[0].Name
	o, err := provider(g).List(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	if err := provider(g).Terminate(t.Context(), o[0]); err != nil {
		t.Fatal(err)
	}
	byHand(t, g, "zones/us-central1-a/instances", `{"name":"`+name+`","machineType":"zones/us-central1-a/machineTypes/e2-standard-2","disks":[{"boot":true,"initializeParams":{"sourceImage":"x"}}],"networkInterfaces":[{"network":"global/networks/default"}]}`)
	_, err = provider(g).Launch(t.Context(), w)
	var owned *provision.OwnedError
	if !errors.As(err, &owned) || !strings.Contains(err.Error(), name) {
		t.Errorf("got %v", err)
	}
	if have, err := provider(g).List(t.Context(), ""); err != nil || len(have) != 0 || len(g.Instances()) != 1 {
		t.Errorf("got %+v, %v and %+v", have, err, g.Instances())
	}
}

func TestListFiltersRegions(t *testing.T) {
	g := newGCE(nil)
	for _, w := range chat() {
		launched(t, provider(g), w)
	}
	for _, tt := range []struct {
		regions  []string
		machines bool
		want     int
	}{{nil, false, 5}, {[]string{"us-central1"}, false, 5}, {[]string{"us-east4"}, false, 1}, {nil, true, 2}, {[]string{"us-east4"}, true, 0}} {
		cfg := config(g)
		cfg.Regions, cfg.MachinesOnly = tt.regions, tt.machines
		if have, err := gcp.New(cfg).List(t.Context(), "chat"); err != nil || len(have) != tt.want {
			t.Errorf("%v, machines only %t: got %d objects, %v; want %d", tt.regions, tt.machines, len(have), err, tt.want)
		}
	}
}

// An incomplete list is an error: its missing machines would be launched again.
func TestPartialListIsAnError(t *testing.T) {
	for _, code := range []string{"UNREACHABLE", "PARTIAL_SUCCESS", "SCHEMA_VALIDATION_IGNORED"} {
		g := newGCE(nil)
		launched(t, provider(g), replica("us-central1-0", service.CapacitySpot))
		g.MakeZoneUnreachable("us-central1-a", code)
		if have, err := provider(g).List(t.Context(), "chat"); err == nil || !strings.Contains(err.Error(), "us-central1-a") {
			t.Errorf("%s: got %+v, %v", code, have, err)
		}
	}
}

func TestInvalidWants(t *testing.T) {
	g := newGCE(nil)
	for _, tt := range []struct {
		change func(*provision.Desired)
		want   string
	}{
		{func(w *provision.Desired) { w.Machine = nil }, "launching us-central1-0 in gcp/us-central1: role and machine configuration are required"},
		{func(w *provision.Desired) { w.Offerings = nil }, "number of offerings must be 1"},
		{func(w *provision.Desired) { w.Offerings[0].Type = "g9-huge" }, "g9-huge"},
		{func(w *provision.Desired) { w.Offerings[0].Zone = "us-central1-q" }, "us-central1-q"},
		{func(w *provision.Desired) { w.Offerings[0].Zone, w.Region = "", "gcp/mars-1" }, `region "mars-1": not found`},
	} {
		w := replica("us-central1-0", service.CapacitySpot)
		tt.change(&w)
		if _, err := provider(g).Launch(t.Context(), w); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
	for _, o := range []provision.Object{{ID: "r", Handle: "i-1234"}, {ID: "r", Kind: provision.KindReplica, Handle: "global/x"}} {
		if err := provider(g).Terminate(t.Context(), o); err == nil || !strings.Contains(err.Error(), `"`+o.Handle+`"`) {
			t.Errorf("got %v", err)
		}
	}
}

// stalled is a transport that never responds.
type stalled struct{ asked chan struct{} }

func (s stalled) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked <- struct{}{}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestCallsEndWithContext(t *testing.T) {
	for _, call := range []func(context.Context, *gcp.Provider) error{
		func(ctx context.Context, p *gcp.Provider) error { _, err := p.List(ctx, "chat"); return err },
		func(ctx context.Context, p *gcp.Provider) error { _, err := p.Offerings(ctx, here); return err },
		func(ctx context.Context, p *gcp.Provider) error {
			return p.Terminate(ctx, provision.Object{ID: "r", Handle: "us-central1-a/x/1"})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := stalled{make(chan struct{})}
		done := make(chan error)
		go func() {
			done <- call(ctx, gcp.New(gcp.Config{Project: "p", Endpoint: "http://gce", Transport: s, Poll: -1}))
		}()
		<-s.asked
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
}
