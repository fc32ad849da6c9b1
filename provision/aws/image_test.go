package aws_test

import (
	"errors"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// A region without the first public image boots the next one, and a repeated launch after a lost response
// starts no second machine, whichever image the region has by then.
func TestLaunchFallsBackToNextImage(t *testing.T) {
	missing := "22.04"
	lose, launches := false, 0
	faults := &testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
		if c.Action == "ec2:RunInstances" {
			launches++
			if lose && launches > 1 { // the first call rejects the first image
				return testcloud.ResponseLost
			}
		}
		return testcloud.Served
	}}
	cloud := newCloud(faults)
	cloud.LacksImage = func(_, name string) bool {
		return strings.Contains(name, missing) && strings.Contains(name, "deeplearning")
	}
	launchPrerequisites(t, open(t, cloud), east)
	replica := machine("us-east-1-0", provision.KindReplica, east, service.CapacityOnDemand)
	for i, lacks := range []string{"22.04", "24.04", "no-image", "22.04"} {
		cloud.Configure(func() { missing, lose = lacks, i == 0 })
		if _, err := open(t, cloud).Launch(t.Context(), replica); (err == nil) != (i > 0) {
			t.Fatalf("launch %d: %v", i, err)
		}
	}
	have := cloud.Machines()
	if len(have) != 1 || !strings.Contains(have[0].Image, "base-oss-nvidia-driver-gpu-ubuntu-24.04") {
		t.Errorf("machines %+v, want one with the second public image", have)
	}
}

// A configured image is used for its GPU type, and one that does not exist is named with the key to change.
func TestLaunchUsesConfiguredImage(t *testing.T) {
	cloud := newCloud(nil)
	cloud.LacksImage = func(_, name string) bool { return name == "ami-0a1b2c3d4e5f60718" }
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	replica := machine("us-east-1-0", provision.KindReplica, east, service.CapacityOnDemand)
	replica.Machine.Images = map[string]string{"L4": "ami-0a1b2c3d4e5f60718", "gpu": "ami-00000000000000000"}
	_, err := p.Launch(t.Context(), replica)
	var spec *provision.SpecError
	if !errors.As(err, &spec) || !strings.Contains(err.Error(), "set regions[].images.L4 of aws/us-east-1") || !strings.Contains(err.Error(), "ami-0a1b2c3d4e5f60718") {
		t.Errorf("missing image: got %v", err)
	}
	replica.Machine.Images = map[string]string{"gpu": "ami-00000000000000000"}
	launch(t, p, replica)
	if have := cloud.Machines(); len(have) != 1 || have[0].Image != "ami-00000000000000000" {
		t.Errorf("machines %+v, want the configured image", have)
	}
}

// A check of a launch names what EC2 would reject, and starts nothing.
func TestCheckLaunch(t *testing.T) {
	for want, change := range map[string]func(*provision.Desired, *testcloud.AWS){
		"accepted with boot image resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id; not checked because 'up' has not created it yet: the security group, the instance profile": func(*provision.Desired, *testcloud.AWS) {},
		"set regions[].images.L4 of aws/us-east-1": func(w *provision.Desired, c *testcloud.AWS) {
			w.Machine.Images = map[string]string{"L4": "ami-gone"}
			c.LacksImage = func(_, name string) bool { return name == "ami-gone" }
		},
		"ec2:RunInstances: UnauthorizedOperation": func(_ *provision.Desired, c *testcloud.AWS) {
			c.DenialCode = func(_, action string) string {
				if action == "ec2:RunInstances" {
					return "UnauthorizedOperation"
				}
				return ""
			}
		},
		"zone us-east-1b does not have g6.xlarge; zones of the region that have it: us-east-1a": func(_ *provision.Desired, c *testcloud.AWS) {
			c.HasInstanceType = func(zone, _ string) bool { return zone == "us-east-1a" }
		},
	} {
		cloud := newCloud(nil)
		w := machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot)
		change(&w, cloud)
		c := open(t, cloud).CheckLaunch(t.Context(), w)
		if !strings.Contains(c.Message, want) || !strings.HasPrefix(c.Message, "launching a replica on g6.xlarge (spot) in us-east-1b: ") || c.OK != strings.HasPrefix(want, "accepted") || len(cloud.RemainingResources()) > 0 {
			t.Errorf("got %+v, want %s", c, want)
		}
	}
}
