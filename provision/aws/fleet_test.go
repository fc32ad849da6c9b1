package aws_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// fiveRegions is a large service: a balancer and nineteen replicas in each of five regions, with their
// prerequisites.
func fiveRegions() (regions []string, wants []provision.Desired) {
	regions = []string{"us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1", "sa-east-1"}
	wants = append(wants, roleFor(provision.RoleBalancer, provision.GrantOperate), roleFor(provision.RoleReplica))
	for _, name := range regions {
		region := service.Region("aws/" + name)
		wants = append(wants, firewall(region, provision.RoleBalancer), firewall(region, provision.RoleReplica),
			machine("lb-"+name+"-0", provision.KindBalancer, region, service.CapacityOnDemand))
		for n := range 19 {
			wants = append(wants, machine(fmt.Sprintf("%s-%d", name, n), provision.KindReplica, region, service.CapacitySpot))
		}
	}
	return regions, wants
}

// fleetUp launches the service in a cloud with slow calls.
func fleetUp(t testing.TB, latency time.Duration) (*testcloud.Faults, *testcloud.AWS) {
	regions, wants := fiveRegions()
	f := &testcloud.Faults{DuringCall: func(testcloud.Call) { time.Sleep(latency) }}
	cloud := testcloud.NewAWS(f, regions...)
	p, err := aws.New(t.Context(), config(cloud, regions...))
	if err != nil {
		t.Fatal(err)
	}
	have, err := p.List(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provision.Apply(t.Context(), provision.Diff(wants, have), p, provision.ApplyOptions{Parallel: 128}); err != nil {
		t.Fatal(err)
	}
	return f, cloud
}

// When many machines are launched at once, the number of calls in flight per region is limited, and no
// machine is launched twice.
func TestConcurrentLaunchesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		f, cloud := fleetUp(t, 20*time.Millisecond)
		total := 0
		for _, n := range f.CallCounts() {
			total += n
		}
		regions, _ := fiveRegions()
		var most []int
		for _, name := range regions {
			most = append(most, f.MaxCallsInFlight("aws", name))
		}
		t.Logf("100 machines in %s of calls of 20 ms: %d calls, at most %d in flight to a region; %v", time.Since(begun), total, most, f.CallCounts())
		if slices.Max(most) > provision.MaxCallsPerHost {
			t.Errorf("in flight to the regions were %v calls, want at most %d", most, provision.MaxCallsPerHost)
		}
		if n := len(cloud.Machines()); n != 100 || f.CallCounts()["ec2:RunInstances"] != 100 {
			t.Errorf("%d machines of %d launches, want 100 of 100", n, f.CallCounts()["ec2:RunInstances"])
		}
	})
}

func BenchmarkFleetUp(b *testing.B) {
	for b.Loop() {
		fleetUp(b, 0)
	}
}
