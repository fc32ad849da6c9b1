package cloud_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const threeRegions = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}, {type: H100}]
  - name: qwen
    engine: {kind: vllm}
    gpus: [{type: L4, price: 0.7}]
    regions: {"gcp/europe-west4": {min: 0, max: 0}}
regions:
  - name: aws/us-east-1
    replicas: {min: 2, max: 4}
    capacity: [spot, on_demand]
    on_demand_base: 1
  - name: gcp/europe-west4
    replicas: {min: 1, max: 3}
  - name: aws/ap-northeast-1
    balancers: 2
    replicas: {min: 1, max: 2}
    reserved: [{type: g6.xlarge, count: 1, price: 0.42}]
`

func parse(t interface{ Fatal(...any) }, text string) *service.Spec {
	spec, err := service.Parse("service.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// offers returns the offerings of every region: every known type in two zones, in a local region its process.
func offers(spec *service.Spec) map[service.Region]provision.Offerings {
	all := map[service.Region]provision.Offerings{}
	for _, r := range spec.Regions {
		if cloud.RunsOnThisComputer(r.Name) {
			all[r.Name] = provision.Offerings{{Type: "local", Region: r.Name, Capacity: service.CapacityOnDemand}}
		}
		for _, m := range provision.MachineTypes(r.Name.Cloud()) {
			for _, zone := range []string{"a", "b"} {
				for _, capacity := range []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot} {
					all[r.Name] = append(all[r.Name], m.Offering(r.Name, r.Name.ShortName()+zone, capacity))
				}
			}
		}
	}
	return all
}

func input(spec *service.Spec) cloud.LayoutInput {
	return cloud.LayoutInput{
		Spec: spec, Owner: "me", Offerings: offers(spec),
		UserData: func(n cloud.MachineInput) (string, error) { return "#cloud-config\n# " + n.ID + "\n", nil },
	}
}

func plan(t interface{ Fatal(...any) }, in cloud.LayoutInput) *cloud.Layout {
	l, err := cloud.BuildLayout(in)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// launchAll returns the objects after every desired object was launched on its first offering.
func launchAll(wants []provision.Desired) []provision.Object {
	var have []provision.Object
	for i, w := range wants {
		o := provision.Object{ID: w.ID, Kind: w.Kind, Service: w.Service, Owner: w.Owner, Region: w.Region, SpecHash: w.SpecHash, Labels: w.Labels, Handle: fmt.Sprint(i)}
		if len(w.Offerings) > 0 {
			o.Offering = &w.Offerings[0]
		}
		have = append(have, o)
	}
	return have
}

func ids(wants []provision.Desired, kind provision.ObjectKind) []string {
	var out []string
	for _, w := range wants {
		if w.Kind == kind {
			out = append(out, w.ID)
		}
	}
	return out
}

func TestLayoutObjects(t *testing.T) {
	l := plan(t, input(parse(t, threeRegions)))
	for kind, want := range map[provision.ObjectKind][]string{
		provision.KindBalancer: {"lb-us-east-1-0", "lb-europe-west4-0", "lb-ap-northeast-1-0", "lb-ap-northeast-1-1"},
		provision.KindReplica:  {"us-east-1-0", "us-east-1-1", "europe-west4-0", "ap-northeast-1-0", "us-east-1-qwen-0", "us-east-1-qwen-1", "ap-northeast-1-qwen-0"},
		provision.KindIdentity: {"identity-aws-balancer", "identity-aws-replica", "identity-aws-spare", "identity-gcp-balancer", "identity-gcp-replica"},
		provision.KindFirewall: {
			"firewall-ap-northeast-1-balancer", "firewall-ap-northeast-1-replica", "firewall-us-east-1-balancer", "firewall-us-east-1-replica",
			"firewall-europe-west4-balancer", "firewall-europe-west4-replica",
		},
	} {
		got := ids(l.Desired, kind)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
	}
	for _, w := range l.Desired {
		if w.Service != "chat" || w.Owner != "me" || w.SpecHash == "" {
			t.Errorf("%s is of %q, owned by %q, with spec %q", w.ID, w.Service, w.Owner, w.SpecHash)
		}
	}
}

// A machine with another Google service account must be replaced; machines of other clouds have none.
func TestGoogleServiceAccounts(t *testing.T) {
	spec := parse(t, threeRegions)
	before := launchAll(plan(t, input(spec)).Desired)
	spec.GCP.BalancerAccount = "lb@p.iam.gserviceaccount.com"
	l := plan(t, input(spec))
	for _, w := range l.Desired {
		if w.Machine == nil {
			continue
		}
		want := ""
		if w.Kind == provision.KindBalancer && w.Region.Cloud() == service.CloudGCP {
			want = spec.GCP.BalancerAccount
		}
		if w.Machine.Account != want {
			t.Errorf("%s runs as %q, want %q", w.ID, w.Machine.Account, want)
		}
	}
	var changed []string
	for _, c := range provision.Diff(l.Desired, before) {
		changed = append(changed, string(c.Action)+" "+c.ID())
	}
	if want := []string{"replace lb-europe-west4-0"}; !slices.Equal(changed, want) {
		t.Errorf("got %q, want %q", changed, want)
	}
}

// The first offerings of each replica: GPUs in the order of service.yaml, capacity types in the order of the region, and
// another zone first for each ordinal.
func TestReplicaOfferingsOrder(t *testing.T) {
	l := plan(t, input(parse(t, threeRegions)))
	for id, want := range map[string][]string{
		"us-east-1-0":      {"on_demand g6.xlarge in us-east-1a", "on_demand g6.xlarge in us-east-1b", "on_demand g6.4xlarge in us-east-1a"},
		"us-east-1-1":      {"spot g6.xlarge in us-east-1b", "spot g6.xlarge in us-east-1a", "spot g6.4xlarge in us-east-1b"},
		"europe-west4-0":   {"on_demand g2-standard-4 in europe-west4a", "on_demand g2-standard-4 in europe-west4b", "on_demand a3-highgpu-1g in europe-west4a"},
		"ap-northeast-1-0": {"reserved g6.xlarge in ap-northeast-1a", "reserved g6.xlarge in ap-northeast-1b", "on_demand g6.xlarge in ap-northeast-1a"},
		// the only commitment is used up
		"ap-northeast-1-qwen-0": {"on_demand g6.xlarge in ap-northeast-1a", "on_demand g6.xlarge in ap-northeast-1b"},
		"lb-us-east-1-0":        {"on_demand c7i.large in us-east-1a", "on_demand c7i.large in us-east-1b"},
	} {
		i := slices.IndexFunc(l.Desired, func(w provision.Desired) bool { return w.ID == id })
		var got []string
		for _, o := range l.Desired[i].Offerings {
			got = append(got, o.String())
		}
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%s: got %q, want %q first", id, got, want)
		}
		if id == "ap-northeast-1-0" && l.Desired[i].CostPerHour != 0.42 {
			t.Errorf("%s costs %v, want what the commitment does", id, l.Desired[i].CostPerHour)
		}
		if id == "ap-northeast-1-qwen-0" && l.Desired[i].CostPerHour != 0.7 {
			t.Errorf("%s costs %v, want the price of the file", id, l.Desired[i].CostPerHour)
		}
	}
}

// drawService draws a service in which some replicas exist, some are fallbacks, and some have no
// capacity.
func drawService(t *rapid.T) cloud.LayoutInput {
	spec := parse(t, threeRegions)
	in := input(spec)
	in.Shortfall = map[cloud.ReplicaGroup]int{}
	for range rapid.IntRange(0, 3).Draw(t, "ups before") { // each step starts with the result of the previous one
		for _, m := range spec.Models {
			for _, r := range spec.Regions {
				in.Shortfall[cloud.ReplicaGroup{Model: m.Name, Region: r.Name}] = rapid.IntRange(0, 2).Draw(t, "short")
			}
		}
		have := launchAll(plan(t, in).Desired)
		for i := range have {
			if have[i].Kind == provision.KindReplica && rapid.IntRange(0, 5).Draw(t, "gone") == 0 {
				have[i].TerminatedReason = "interrupted"
			}
		}
		in.Have = have
	}
	return in
}

func TestLayoutKeepsReplicasWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawService(t)
		l := plan(t, in)
		seen := map[string]bool{}
		count, home := map[cloud.ReplicaGroup]int{}, map[cloud.ReplicaGroup]int{}
		for _, w := range l.Desired {
			if seen[w.ID] {
				t.Fatalf("%s is wanted twice", w.ID)
			}
			seen[w.ID] = true
			if w.Kind != provision.KindReplica {
				continue
			}
			count[cloud.ReplicaGroup{Model: w.Labels["model"], Region: w.Region}]++
			if region := w.Labels["for"]; region != "" {
				home[cloud.ReplicaGroup{Model: w.Labels["model"], Region: service.Region(region)}]++
			} else {
				home[cloud.ReplicaGroup{Model: w.Labels["model"], Region: w.Region}]++
			}
		}
		for _, m := range in.Spec.Models {
			for _, r := range in.Spec.Regions {
				g, b := cloud.ReplicaGroup{Model: m.Name, Region: r.Name}, in.Spec.BoundsFor(m.Name, r.Name)
				if count[g] > b.Max {
					t.Fatalf("%v: %d replicas, at most %d are allowed", g, count[g], b.Max)
				}
				if home[g]+l.Unplaced[g] < b.Min {
					t.Fatalf("%v: %d replicas and %d missing, at least %d are wanted", g, home[g], l.Unplaced[g], b.Min)
				}
			}
		}
	})
}

func TestLayoutIsStableAfterLaunch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawService(t)
		first := plan(t, in)
		in.Have = launchAll(first.Desired)
		second := plan(t, in)
		if changes := provision.Diff(second.Desired, in.Have); len(changes) != 0 {
			t.Fatalf("a second up changes %+v", changes)
		}
		if !reflect.DeepEqual(first.Unplaced, second.Unplaced) {
			t.Fatalf("missing were %v, are %v", first.Unplaced, second.Unplaced)
		}
	})
}

// When a region has capacity again, its replicas return and their fallbacks are terminated.
func TestFallbacksEndWhenRegionHasCapacity(t *testing.T) {
	in := input(parse(t, threeRegions))
	in.Shortfall = map[cloud.ReplicaGroup]int{{Model: "llama", Region: "aws/us-east-1"}: 2}
	away := plan(t, in)
	if got := ids(away.Desired, provision.KindReplica); !slices.Equal(got[:3], []string{"europe-west4-0", "europe-west4-1", "europe-west4-2"}) {
		t.Fatalf("got %q, want two more in the next region of the file", got)
	}
	in.Have, in.Shortfall = launchAll(away.Desired), nil
	var back []string
	for _, c := range provision.Diff(plan(t, in).Desired, in.Have) {
		back = append(back, fmt.Sprint(c.Action, " ", c.ID()))
	}
	if want := []string{"launch us-east-1-0", "launch us-east-1-1", "terminate europe-west4-1", "terminate europe-west4-2"}; !slices.Equal(back, want) {
		t.Errorf("got %q, want %q", back, want)
	}
}

func TestValidateRejectsInvalidSpecs(t *testing.T) {
	for _, tt := range []struct{ change, to, want string }{
		{"- name: gcp/europe-west4\n", "- name: local/eu\n", "regions[1].name"},
		{"- name: gcp/europe-west4\n", "- name: static/us-east-1\n    endpoints: ['http://10.0.0.1', 'http://10.0.0.2', 'http://10.0.0.3']\n", "must be unique, got aws/us-east-1 and static/us-east-1"},
		{"    gpus: [{type: L4}, {type: H100}]\n", "", "models[0].gpus: is required"},
		{"gpus: [{type: L4}, {type: H100}]", "gpus: [{type: A100}]", "has no offering with A100 for llama"},
	} {
		text := strings.Replace(threeRegions, tt.change, tt.to, 1)
		if strings.Contains(tt.change, "europe-west4") {
			text = strings.Replace(text, `    regions: {"gcp/europe-west4": {min: 0, max: 0}}`+"\n", "", 1)
		}
		_, err := cloud.BuildLayout(input(parse(t, text)))
		var spec *provision.SpecError
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q in it", err, tt.want)
		} else if _, ok := err.(*provision.SpecError); !ok {
			t.Errorf("got a %T, want a %T", err, spec)
		}
	}
}

// Another network changes an object's hash; other subnets do not.
func TestAnotherNetworkChangesSpecHash(t *testing.T) {
	specs := func(more string) map[string]string {
		spec := parse(t, strings.Replace(threeRegions, "  - name: aws/us-east-1\n", "  - name: aws/us-east-1\n"+more, 1))
		l, err := cloud.BuildLayout(input(spec))
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, w := range l.Desired {
			all[w.ID] = w.SpecHash
		}
		return all
	}
	before := specs("")
	one := specs("    network: vpc-0000000a\n    subnets: [subnet-0000000a]\n")
	two := specs("    network: vpc-0000000a\n    subnets: [subnet-0000000b, subnet-0000000a]\n")
	other := specs("    network: vpc-0000000b\n    subnets: [subnet-0000000c]\n")
	if !reflect.DeepEqual(one, two) {
		t.Errorf("with another subnet it is %v, was %v", two, one)
	}
	for id := range before {
		here := strings.Contains(id, "us-east-1")
		if (before[id] != one[id]) != here || (one[id] != other[id]) != here {
			t.Errorf("%s: is %q, in one network %q, in another %q", id, before[id], one[id], other[id])
		}
	}
}

// Regions with session access grant it to the machines of both roles, and replicas may read models and adapters in
// buckets of AWS. There are no other grants: in Google Cloud the IAM roles of service accounts set the permissions of
// machines.
func TestLayoutGrants(t *testing.T) {
	text := strings.Replace(threeRegions, "  - name: aws/us-east-1\n", "  - name: aws/us-east-1\n    access: ssm\n", 1)
	text = strings.Replace(text, "engine: {kind: vllm}\n    gpus: [{type: L4, price", "engine: {weights: 's3://models/qwen', lora: [{name: sql, source: 's3://loras/sql'}, {name: law, source: org/law}, {name: med, source: 's3://models/qwen'}]}\n    gpus: [{type: L4, price", 1)
	out := "engine: {weights: 'gs://models/llama'}\n    regions: {aws/us-east-1: {min: 0, max: 0}, aws/ap-northeast-1: {min: 0, max: 0}}"
	text = strings.Replace(text, "engine: {kind: vllm}", out, 1) + "gcp: {replica_account: r@my-project.iam.gserviceaccount.com}\n"
	spec := parse(t, text)
	l, err := cloud.BuildLayout(input(spec))
	if err != nil {
		t.Fatal(err)
	}
	session := provision.GrantSession("us-east-1")
	want := map[string][]provision.Grant{
		"identity-aws-balancer": {provision.GrantOperate, provision.GrantReplaceBalancers, provision.GrantReplaceSpares, session}, "identity-aws-spare": {provision.GrantOperate, session}, "identity-aws-replica": {provision.GrantRead("models/qwen"), provision.GrantRead("loras/sql"), session},
		"identity-gcp-balancer": {provision.GrantOperate, provision.GrantReplaceBalancers}, "identity-gcp-replica": nil,
	}
	for _, w := range l.Desired {
		if w.Kind == provision.KindIdentity && !slices.Equal(w.Grants, want[w.ID]) {
			t.Errorf("%s: is granted %q, want %q", w.ID, w.Grants, want[w.ID])
		}
	}
}

// The machines of balancers may launch balancers where three or more can run a controller: those that may run one at
// first, and no others, because root on such a machine can become root on all.
func TestSparesMayNotLaunchBalancers(t *testing.T) {
	const separate = "gcp: {spare_account: spare@p.iam.gserviceaccount.com}\n"
	for _, tt := range []struct {
		regions []service.RegionSpec
		text    string
		spares  []string
		in      []string // the clouds in which controllers replace balancers
	}{
		{regions: balancersIn("aws/us-east-1", 1)},
		{regions: balancersIn("aws/us-east-1", 2)},
		{regions: balancersIn("aws/us-east-1", 3), in: []string{"aws"}},
		{regions: balancersIn("aws/us-east-1", 5), spares: []string{"lb-us-east-1-3", "lb-us-east-1-4"}, in: []string{"aws"}},
		{regions: append(balancersIn("aws/us-east-1", 2), balancersIn("aws/eu-west-1", 2)...), spares: []string{"lb-eu-west-1-1"}, in: []string{"aws"}},
		{ // the only balancer of its cloud is none: nothing could launch balancers there
			regions: slices.Concat(balancersIn("aws/us-east-1", 1), balancersIn("aws/eu-west-1", 1), balancersIn("aws/us-west-2", 1), balancersIn("gcp/us-central1", 1)),
			in:      []string{"aws", "gcp"},
		},
		{ // neither are the first two
			regions: slices.Concat(balancersIn("aws/us-east-1", 1), balancersIn("aws/eu-west-1", 1), balancersIn("aws/us-west-2", 1), balancersIn("gcp/us-central1", 3)),
			spares:  []string{"lb-us-central1-2"}, in: []string{"aws"},
		},
		{
			regions: slices.Concat(balancersIn("aws/us-east-1", 1), balancersIn("aws/eu-west-1", 1), balancersIn("aws/us-west-2", 1), balancersIn("gcp/us-central1", 3)),
			text:    separate, spares: []string{"lb-us-central1-2"}, in: []string{"aws", "gcp"},
		},
		{regions: balancersIn("gcp/us-central1", 4), spares: []string{"lb-us-central1-3"}},
		{regions: balancersIn("gcp/us-central1", 4), text: separate, spares: []string{"lb-us-central1-3"}, in: []string{"gcp"}},
		{regions: balancersIn("aws/us-east-1", 40), spares: balancerIDs("aws/us-east-1", 3, 40), in: []string{"aws"}},
	} {
		spec := parse(t, threeRegions+tt.text)
		for i := range spec.Models {
			spec.Models[i].Regions = nil
		}
		spec.Regions = tt.regions
		if got := cloud.Spares(spec); !slices.Equal(got, tt.spares) {
			t.Errorf("%+v: the spares are %q, want %q", tt.regions, got, tt.spares)
		}
		for _, w := range plan(t, input(spec)).Desired {
			if may, want := slices.Contains(w.Grants, provision.GrantReplaceBalancers), slices.Contains(tt.in, w.Region.Cloud()) && strings.HasSuffix(w.ID, "-balancer"); w.Kind == provision.KindIdentity && may != want {
				t.Errorf("%+v: %s has the grants %v", tt.regions, w.ID, w.Grants)
			}
			if w.Kind != provision.KindBalancer {
				continue
			}
			isSpare, account := slices.Contains(tt.spares, w.ID), ""
			if isSpare && w.Region.Cloud() == service.CloudGCP {
				account = spec.GCP.SpareAccount
			}
			if w.Machine.Spare != (isSpare && w.Region.Cloud() == service.CloudAWS) || w.Machine.Account != account {
				t.Errorf("%+v: %s has the machine %+v", tt.regions, w.ID, w.Machine)
			}
		}
	}
}

// balancersIn returns a region with balancers.
func balancersIn(name service.Region, count int) []service.RegionSpec {
	return []service.RegionSpec{{Name: name, Balancers: count}}
}

// balancerIDs returns the IDs of the balancers from one number to before another.
func balancerIDs(name service.Region, from, to int) (ids []string) {
	for n := from; n < to; n++ {
		ids = append(ids, provision.BalancerID(name, n))
	}
	return ids
}

// Machines at AWS may change the records of balancers where controllers replace balancers, with the health checks that are
// published.
func TestOnlyControllersChangeRecords(t *testing.T) {
	const named = "dns: {provider: route53, name: chat.example.com, zone: example.com}\n"
	for _, tt := range []struct {
		balancers int
		zone      string
		want      bool
	}{{3, "Z1", true}, {3, "", false}, {2, "Z1", false}, {4, "Z1", true}} {
		spec := parse(t, threeRegions+named)
		spec.Regions = spec.Regions[:1]
		for i := range spec.Models {
			spec.Models[i].Regions = nil
		}
		spec.Regions[0].Balancers = tt.balancers
		in := input(spec)
		in.HostedZoneID, in.HealthChecks = tt.zone, []string{"c1", "c2"}
		for _, w := range plan(t, in).Desired {
			if may := slices.Contains(w.Grants, provision.GrantRecords("Z1", "chat.example.com", in.HealthChecks)); may != (tt.want && w.ID == "identity-aws-balancer") {
				t.Errorf("%+v: %s has the grants %v", tt, w.ID, w.Grants)
			}
		}
	}
}

// Balancers, and nobody else, may store files in the service's folder of the bucket, in its cloud. Without store.files no
// hash of a machine changes, so that no machine is replaced.
func TestLayoutGrantsFiles(t *testing.T) {
	for files, want := range map[string]map[string]provision.Grant{
		"": {}, "s3://batches/all": {"identity-aws-balancer": provision.GrantFiles("batches/all/chat")}, "gs://batches": {"identity-gcp-balancer": provision.GrantFiles("batches/chat")},
	} {
		spec := parse(t, threeRegions)
		spec.Store.Files = files
		l, err := cloud.BuildLayout(input(spec))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range l.Desired {
			if g, granted := want[w.ID]; w.Kind == provision.KindIdentity && slices.Contains(w.Grants, g) != granted {
				t.Errorf("%q: %s is granted %q, want %q", files, w.ID, w.Grants, g)
			}
			stores := files == "gs://batches" && w.Kind == provision.KindBalancer && w.Region.Cloud() == service.CloudGCP
			if w.Machine != nil && w.Machine.StoresFiles != stores {
				t.Errorf("%q: StoresFiles of %s is %v", files, w.ID, w.Machine.StoresFiles)
			}
			if text, err := json.Marshal(w.Machine); err != nil || !stores && strings.Contains(string(text), "StoresFiles") {
				t.Errorf("%q: the hash of %s includes StoresFiles: %s, %v", files, w.ID, text, err)
			}
		}
	}
}

// Controllers may write backups to the folder of store.backup.to, with the identity of balancers' machines in its cloud.
func TestLayoutGrantsBackups(t *testing.T) {
	for _, tt := range []struct {
		region service.Region
		to     string
		want   provision.Grant
	}{{"aws/us-east-1", "s3://saved/chat", provision.GrantBackups("saved/chat")}, {"gcp/europe-west4", "gs://saved/all/chat", provision.GrantBackups("saved/all/chat")}} {
		spec := parse(t, threeRegions)
		spec.Regions = slices.DeleteFunc(spec.Regions, func(r service.RegionSpec) bool { return r.Name != tt.region })
		for i := range spec.Models {
			spec.Models[i].Regions = nil
		}
		spec.Store.Backup = &service.StoreBackup{To: tt.to}
		l, err := cloud.BuildLayout(input(spec))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range l.Desired {
			if granted := slices.Contains(w.Grants, tt.want); granted != (w.Kind == provision.KindIdentity && strings.HasSuffix(w.ID, "-balancer")) {
				t.Errorf("%s: %s is granted %q", tt.to, w.ID, w.Grants)
			}
			if stores := w.Machine != nil && w.Machine.StoresFiles; stores != (w.Kind == provision.KindBalancer && tt.region.Cloud() == service.CloudGCP) {
				t.Errorf("%s: StoresFiles of %s is %v", tt.to, w.ID, stores)
			}
		}
	}
}

// withObtainedCertificate is the service of threeRegions with a certificate that balancers obtain.
func withObtainedCertificate(challenge string) string {
	return strings.Replace(threeRegions, "insecure: true", "tls: {acme: {email: ops@example.com, challenge: "+challenge+"}}", 1) +
		"dns: {provider: route53, name: chat.example.com, zone: example.com}\n"
}

// Port 80 is open only for http-01 challenges, and the DNS record is granted only for dns-01 challenges.
func TestChallengesOpenPortAndGrantRecord(t *testing.T) {
	for challenge, want := range map[string]struct{ port, record bool }{
		service.ChallengeHTTP: {port: true}, service.ChallengeTLSALPN: {}, service.ChallengeDNS: {record: true},
	} {
		in := input(parse(t, withObtainedCertificate(challenge)))
		in.HostedZoneID = "Z1"
		for _, w := range plan(t, in).Desired {
			has := func(port int) bool {
				return slices.Contains(w.Rules, provision.FirewallRule{Port: port, From: provision.FromWorld})
			}
			balancers := w.Labels["role"] == string(provision.KindBalancer)
			switch w.Kind {
			case provision.KindFirewall:
				if has(80) != (balancers && want.port) || has(443) != balancers || has(8000) {
					t.Errorf("%s: %s has the rules %v", challenge, w.ID, w.Rules)
				}
			case provision.KindIdentity:
				may := slices.Contains(w.Grants, provision.GrantChallenge("Z1", "chat.example.com"))
				if may != (want.record && (w.ID == "identity-aws-balancer" || w.ID == "identity-aws-spare")) {
					t.Errorf("%s: %s has the grants %v", challenge, w.ID, w.Grants)
				}
			}
		}
	}
}

// Any machine with a controller may write backups: all must be able to.
func TestBackupsInClouds(t *testing.T) {
	for _, c := range []struct{ regions, to, want string }{
		{"aws/us-east-1", "s3://backups/chat", ""},
		{"aws/us-east-1", "backups", "store.backup.to: must be a folder of a bucket"},
		{"aws/us-east-1", "s3://backups", "store.backup.to: must be a folder of a bucket such as s3://"},
		{"gcp/europe-west4", "gs://backups/chat", ""},
		{"gcp/europe-west4", "s3://backups/chat", "the machines of regions[0], gcp/europe-west4, have no identity in aws"},
		{"aws/us-east-1, gcp/europe-west4", "s3://backups/chat", "the machines of regions[1], gcp/europe-west4, have no identity in aws"},
		{"local/us", "gs://backups/chat", ""},
		{"local/us", "backups", ""},
	} {
		var regions []string
		for name := range strings.SplitSeq(c.regions, ", ") {
			regions = append(regions, "{name: "+name+"}")
		}
		insecure := ", insecure: true"
		if c.regions == "local/us" {
			insecure = ""
		}
		spec := parse(t, fmt.Sprintf("name: chat\nmodels: [{name: org/m, engine: {kind: sim}, gpus: [{type: L4}]}]\nregions: [%s]\nbalancer: {auth: {keys_from: env:KEYS}%s}\nstore: {backup: {to: %q}}\n", strings.Join(regions, ", "), insecure, c.to))
		err := cloud.Validate(spec)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: got %v, want %q", c.regions, c.to, err, c.want)
		}
	}
}

// Machines at Google may use the role of balancers only where they replace the only one at AWS.
func TestFederatedCloud(t *testing.T) {
	off := false
	for _, tt := range []struct {
		regions    []service.Region
		federation *bool
		want       string
	}{
		{[]service.Region{"aws/us-east-1", "gcp/us-central1", "gcp/europe-west4"}, nil, service.CloudAWS},
		{[]service.Region{"aws/us-east-1", "aws/eu-west-1", "gcp/us-central1"}, nil, service.CloudGCP},
		{[]service.Region{"aws/us-east-1", "gcp/us-central1", "gcp/europe-west4"}, &off, ""},
		{[]service.Region{"aws/us-east-1", "aws/eu-west-1", "aws/us-west-2"}, nil, ""},
		{[]service.Region{"gcp/us-east4", "gcp/us-central1", "gcp/europe-west4"}, nil, ""},
		{[]service.Region{"aws/us-east-1", "gcp/us-central1"}, nil, ""},
		{[]service.Region{"aws/us-east-1", "aws/eu-west-1", "aws/us-west-2", "gcp/us-central1"}, nil, service.CloudGCP},
		{[]service.Region{"gcp/us-east4", "gcp/us-central1", "aws/us-east-1"}, nil, service.CloudAWS},
		{[]service.Region{"gcp/us-east4", "gcp/us-central1", "gcp/europe-west4", "gcp/us-west1", "aws/us-east-1"}, nil, ""}, // spares at Google have the same account
		{[]service.Region{"aws/us-east-1", "aws/eu-west-1", "gcp/us-central1", "gcp/europe-west4"}, nil, ""},
	} {
		spec := parse(t, threeRegions)
		for i := range spec.Models {
			spec.Models[i].Regions = nil
		}
		spec.Regions, spec.GCP.Federation = nil, tt.federation
		for _, r := range tt.regions {
			spec.Regions = append(spec.Regions, service.RegionSpec{Name: r})
		}
		if got := cloud.FederatedCloud(spec); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.regions, got, tt.want)
		}
		in := input(spec)
		in.FederatedAccount = "1234"
		for _, w := range plan(t, in).Desired {
			want := tt.want == service.CloudAWS && w.ID == "identity-aws-balancer"
			if slices.Contains(w.Grants, provision.GrantFederated("1234")) != want {
				t.Errorf("%v: %s has the grants %v", tt.regions, w.ID, w.Grants)
			}
		}
	}
}

// Where a service with a name has no machines at AWS, controllers at Google change its records by an identity at AWS that
// permits nothing else, and no other identity permits it.
func TestRecordsIdentity(t *testing.T) {
	const name = "dns: {provider: route53, name: chat.example.com, zone: example.com}\n"
	google := []service.Region{"gcp/us-east4", "gcp/us-central1", "gcp/europe-west4"}
	for _, tt := range []struct {
		what    string
		text    string
		regions []service.Region
		want    bool
	}{
		{"three balancers at Google", name, google, true},
		{"without a name", "", google, false},
		{"turned off", name + "gcp: {federation: false}\n", google, false},
		{"two balancers", name, google[:2], false},
		{"another balancer at AWS", name, []service.Region{"gcp/us-east4", "gcp/us-central1", "aws/us-east-1"}, false},
	} {
		spec := parse(t, threeRegions+tt.text)
		for i := range spec.Models {
			spec.Models[i].Regions = nil
		}
		spec.Regions = nil
		for _, r := range tt.regions {
			spec.Regions = append(spec.Regions, service.RegionSpec{Name: r})
		}
		in := input(spec)
		in.FederatedAccount, in.HostedZoneID, in.HealthChecks = "1234", "Z1", []string{"c1"}
		got := map[string][]provision.Grant{}
		for _, w := range plan(t, in).Desired {
			if w.Region.Cloud() == service.CloudAWS && slices.ContainsFunc(w.Grants, func(g provision.Grant) bool { _, _, _, ok := g.Records(); return ok }) {
				got[w.ID] = w.Grants
			}
		}
		records := got["identity-aws-records"]
		if want := []provision.Grant{provision.GrantRecords("Z1", "chat.example.com", []string{"c1"}), provision.GrantFederated("1234")}; tt.want != slices.Equal(records, want) || !tt.want && records != nil || tt.want && len(got) != 1 {
			t.Errorf("%s: got %v", tt.what, got)
		}
		if provided := slices.Contains(cloud.RegionsWithObjects(spec), "aws/global"); provided != tt.want {
			t.Errorf("%s: aws/global is provided: %t", tt.what, provided)
		}
		in.FederatedAccount = ""
		for _, w := range plan(t, in).Desired {
			if w.ID == "identity-aws-records" {
				t.Errorf("%s: without the account of balancers there is %+v", tt.what, w)
			}
		}
	}
}
