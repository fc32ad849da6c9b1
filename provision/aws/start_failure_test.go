package aws_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// A launch that EC2 accepted and then failed is not repeated at once. For a lack of capacity the next zone is
// attempted, and the same zone later.
func TestStartFailureBlocksRelaunch(t *testing.T) {
	for code, want := range map[string]provision.CapacityScope{
		"Server.InsufficientInstanceCapacity": provision.ScopeZone,
		"Server.InternalError":                provision.ScopeZone,
		"Client.VolumeLimitExceeded":          provision.ScopeQuota,
		"Client.InternalError":                "",
	} {
		t.Run(code, func(t *testing.T) {
			now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
			cloud := newCloud(nil)
			cloud.Now = func() time.Time { return now }
			cloud.StartFailureCode = func(zone, _, _ string) string {
				if zone == "us-east-1b" && now.Minute() < 20 {
					return code
				}
				return ""
			}
			c := config(cloud, "us-east-1")
			c.Now = cloud.Now
			p, err := aws.New(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			launchPrerequisites(t, p, east)
			w := machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot)
			launch(t, p, w)
			_, err = p.Launch(t.Context(), w)
			var refused *provision.CapacityError
			switch {
			case want == "" && (err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), code) || !strings.Contains(err.Error(), "KMS key")):
				t.Errorf("got %v, want what it ended of and what to look for", err)
			case want != "" && (!errors.As(err, &refused) || refused.Scope != want || refused.Code != code):
				t.Errorf("got %v, want a refusal of the %s", err, want)
			}
			otherZone := w
			otherZone.Offerings = provision.Offerings{w.Offerings[0]}
			otherZone.Offerings[0].Zone = "us-east-1a"
			launch(t, p, otherZone)
			cloud.TerminateInstance(cloud.Machines()[0].ID)
			now = now.Add(30 * time.Minute)
			launch(t, p, w)
			if m := cloud.Machines(); len(m) != 1 || m[0].Zone != "us-east-1b" {
				t.Errorf("after a while there is %+v", m)
			}
		})
	}
}

// An image parameter changes between a launch and its repetition. Still only one machine is created, and
// another one after the first has ended.
func TestLaunchAfterImageChange(t *testing.T) {
	cloud := newCloud(&testcloud.Faults{})
	p := open(t, cloud)
	launchPrerequisites(t, p, east)
	w := machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot)
	for range 3 {
		launch(t, p, w)
		id := cloud.Machines()[0].ID
		cloud.RenewImages()
		for _, tag := range []string{"skyserve:id", "skyserve:spec"} { // so that only its token identifies it
			kept := cloud.Machines()[0].Tags[tag]
			cloud.Machines()[0].Tags[tag] = "hidden"
			launch(t, p, w)
			cloud.Machines()[0].Tags[tag] = kept
		}
		if m := cloud.Machines(); len(m) != 1 || m[0].ID != id {
			t.Fatalf("there is %+v, want %s alone", m, id)
		}
		cloud.TerminateInstance(id)
		cloud.RemoveEndedInstances()
	}
}
