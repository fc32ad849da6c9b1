package aws_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

func TestOfferings(t *testing.T) {
	cloud := newCloud(nil)
	cloud.PageSize = 3
	cloud.HasInstanceType = func(zone, name string) bool {
		return name == "g6.xlarge" && zone != "us-east-1c" || name == "c7i.large" || name == "p5.48xlarge" && zone == "us-east-1a"
	}
	cloud.SpotPrice = func(zone, name string) string {
		if name == "g6.xlarge" && zone == "us-east-1b" {
			return "0.3612"
		}
		return ""
	}
	cloud.RemoveDefaultSubnet("us-east-1", "us-east-1c")
	offers, err := open(t, cloud).Offerings(t.Context(), east)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range offers {
		got = append(got, fmt.Sprintf("%s %d %s %g (%s)", o, o.GPUs, o.GPU, o.PricePerHour, o.PriceSource))
	}
	want := []string{
		"on_demand c7i.large in us-east-1a 0  0.08925 (list price in us-east-1)",
		"spot c7i.large in us-east-1a 0  0 ()",
		"reserved c7i.large in us-east-1a 0  0.08925 (list price in us-east-1)",
		"on_demand c7i.large in us-east-1b 0  0.08925 (list price in us-east-1)",
		"spot c7i.large in us-east-1b 0  0 ()",
		"reserved c7i.large in us-east-1b 0  0.08925 (list price in us-east-1)",
		"on_demand g6.xlarge in us-east-1a 1 L4 0.8048 (list price in us-east-1)",
		"spot g6.xlarge in us-east-1a 1 L4 0.4 (list price in us-east-1)",
		"reserved g6.xlarge in us-east-1a 1 L4 0.8048 (list price in us-east-1)",
		"on_demand g6.xlarge in us-east-1b 1 L4 0.8048 (list price in us-east-1)",
		"spot g6.xlarge in us-east-1b 1 L4 0.3612 (spot price in us-east-1b)",
		"reserved g6.xlarge in us-east-1b 1 L4 0.8048 (list price in us-east-1)",
		"on_demand p5.48xlarge in us-east-1a 8 H100 55.04 (list price in us-east-1)",
		"spot p5.48xlarge in us-east-1a 8 H100 0 ()",
		"reserved p5.48xlarge in us-east-1a 8 H100 55.04 (list price in us-east-1)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestQuotas(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	launch(t, p,
		machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot),
		machine("us-east-1-1", provision.KindReplica, east, service.CapacityOnDemand),
		machine("us-east-1-2", provision.KindReplica, east, service.CapacityOnDemand),
		machine("lb-us-east-1-0", provision.KindBalancer, east, service.CapacityOnDemand))
	cloud.QuotaLimits = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 32}
	cloud.DefaultQuotaLimits = map[string]float64{"L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 5, "L-34B43A08": 5}
	got, err := p.Quotas(t.Context(), east)
	want := []provision.Quota{
		{Region: east, Name: "G and VT instances on demand", Code: "L-DB2E81BA", Unit: "vcpus", Limit: 64, Used: 8},
		{Region: east, Name: "G and VT instances as spot", Code: "L-3819A6DF", Unit: "vcpus", Limit: 32, Used: 4},
		{Region: east, Name: "P instances on demand", Code: "L-417A185B", Unit: "vcpus"},
		{Region: east, Name: "P4, P3 and P2 instances as spot", Code: "L-7212CCBC", Unit: "vcpus"},
		{Region: east, Name: "P5 instances as spot", Code: "L-C4BD4855", Unit: "vcpus"},
		{Region: east, Name: "standard instances on demand", Code: "L-1216C47A", Unit: "vcpus", Limit: 5, Used: 2},
		{Region: east, Name: "standard instances as spot", Code: "L-34B43A08", Unit: "vcpus", Limit: 5},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	cloud.DefaultQuotaLimits = map[string]float64{"L-1216C47A": 5}
	got, err = p.Quotas(t.Context(), east)
	if err == nil || !strings.Contains(err.Error(), "L-417A185B, L-7212CCBC, L-C4BD4855, L-34B43A08: ") || strings.Count(err.Error(), "NoSuchResource") != 1 || !slices.Equal(got, append(want[:2:2], want[5])) {
		t.Errorf("without some defaults: got %+v, %v, want those that are known, and which are not", got, err)
	}
}

func TestDoctor(t *testing.T) {
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	well := []string{
		"ok aws: credentials: arn:aws:iam::123456789012:user/operator", "ok aws: clock: 0s ahead of AWS", "ok aws: listing IAM roles",
		"ok aws/us-east-1: network: vpc-us-east-1 with subnets in 3 availability zones", "ok aws/us-east-1: dry run of launching a machine", "ok aws/us-east-1: dry run of creating a security group",
		"ok aws/us-west-2: network: vpc-us-west-2 with subnets in 3 availability zones", "ok aws/us-west-2: dry run of launching a machine", "ok aws/us-west-2: dry run of creating a security group",
	}
	tests := []struct {
		name   string
		change func(*testcloud.AWS)
		only   []string // the failed findings
	}{
		{"valid setup", func(*testcloud.AWS) {}, nil},
		{"expired session", func(c *testcloud.AWS) { c.DenialCode = func(_, _ string) string { return "ExpiredToken" } }, []string{
			"NO aws: credentials: sts:GetCallerIdentity: ExpiredToken: You are not authorized to perform this operation: sts:GetCallerIdentity (log in again: aws sso login, or fetch new session keys)",
		}},
		{"wrong clock", func(c *testcloud.AWS) { c.Now = func() time.Time { return noon.Add(-10 * time.Minute) } }, []string{
			"NO aws: clock: 10m0s ahead of AWS (correct this machine's clock: AWS rejects requests whose time differs by five minutes)",
		}},
		{"clock behind", func(c *testcloud.AWS) { c.Now = func() time.Time { return noon.Add(7 * time.Minute) } }, []string{
			"NO aws: clock: 7m0s behind AWS (correct this machine's clock: AWS rejects requests whose time differs by five minutes)",
		}},
		{"no permission to launch in one region", func(c *testcloud.AWS) {
			c.DenialCode = func(region, action string) string {
				if region == "us-west-2" && action == "ec2:RunInstances" {
					return "UnauthorizedOperation"
				}
				return ""
			}
		}, []string{
			"NO aws/us-west-2: dry run of launching a machine: ec2:RunInstances: UnauthorizedOperation: You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/operator is not authorized to perform: ec2:RunInstances on resource: * because no identity-based policy allows the ec2:RunInstances action. (allow ec2:RunInstances for the caller in an IAM policy)",
		}},
		{"region without a network", func(c *testcloud.AWS) { c.RemoveDefaultNetwork("us-east-1") }, []string{
			"NO aws/us-east-1: network: finding the default VPC of us-east-1: not found; set regions[].network, or create one with `aws ec2 create-default-vpc --region us-east-1` ()",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cloud := newCloud(nil)
			cloud.Now = func() time.Time { return noon }
			tt.change(cloud)
			c := config(cloud, "us-east-1", "us-west-2")
			c.Now = func() time.Time { return noon }
			p, err := aws.New(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			var good, bad []string
			for _, f := range p.Doctor(t.Context()) {
				if f.OK {
					good = append(good, "ok "+f.Where+": "+f.Message)
				} else {
					bad = append(bad, "NO "+f.Where+": "+f.Message+" ("+f.Hint+")")
				}
			}
			if !slices.Equal(bad, tt.only) {
				t.Errorf("not well are %q, want %q", bad, tt.only)
			}
			if tt.only == nil && !slices.Equal(good, well) {
				t.Errorf("well are %q, want %q", good, well)
			}
			if left := cloud.RemainingResources(); len(left) != 0 {
				t.Errorf("Doctor created %q", left)
			}
		})
	}
}

// A network with one subnet has one availability zone.
func TestDoctorCountsOneZone(t *testing.T) {
	cloud := newCloud(nil)
	for _, zone := range []string{"us-east-1b", "us-east-1c"} {
		cloud.RemoveDefaultSubnet("us-east-1", zone)
	}
	p, err := aws.New(t.Context(), config(cloud, "us-east-1"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "network: vpc-us-east-1 with subnets in 1 availability zone"
	if found := p.Doctor(t.Context()); !slices.ContainsFunc(found, func(f provision.CheckResult) bool { return f.Message == want }) {
		t.Errorf("got %+v, want %q", found, want)
	}
}
