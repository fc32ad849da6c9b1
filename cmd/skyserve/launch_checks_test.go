package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"skyserve/provision"
)

// up --dry-run and doctor show the check of each launch, in each cloud, before the first up as well.
func TestLaunchChecksAreShown(t *testing.T) {
	t.Parallel()
	e := emulate(t)
	e.gce.RemoveAccelerator("us-central1-a", "nvidia-l4")
	up := append(e.upOf(twoClouds), "--dry-run")
	shown := e.skyserve(exitOK, up...)
	found := strings.Join(strings.Fields(e.skyserve(exitFailed, e.at("doctor", up[1])...)), " ")
	for _, want := range []string{
		"aws/us-east-1: launching a balancer on c7i.large (on_demand) in us-east-1a: accepted with boot image",
		"aws/us-east-1: launching a replica on g6.xlarge",
		"gcp/us-central1: launching a balancer on e2-standard-2 (on_demand) in us-central1-a: no problem found, boot image ubuntu-2204-lts-v1",
		"gcp/us-central1: launching a replica on g2-standard-4 (on_demand) in us-central1-a: launching on_demand g2-standard-4 in us-central1-a: no capacity in this zone (ACCELERATOR_TYPE_NOT_FOUND): zone us-central1-a does not have GPU type nvidia-l4 of g2-standard-4",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("up: no %q in\n%s", want, shown)
		}
		if want = strings.Replace(want, ": ", " ", 1); !strings.Contains(found, want) {
			t.Errorf("doctor: no %q in\n%s", want, found)
		}
	}
	var document struct{ Launches []provision.LaunchCheck }
	e.document(&document, append(slices.Clone(up), "-o", "json")...)
	failed := 0
	document.Launches = slices.DeleteFunc(document.Launches, func(c provision.LaunchCheck) bool {
		return strings.HasPrefix(c.Message, "capacity of 1 g6.xlarge (spot): spot placement score ") // read by --dry-run only
	})
	for _, c := range document.Launches {
		if !c.OK {
			failed++
		}
		if c.Where == "" || c.Message == "" || c.OK != (c.Image != "") || !strings.Contains(shown, c.Message) {
			t.Errorf("%+v in\n%s", c, shown)
		}
	}
	if failed != 1 || len(document.Launches) < 5 {
		t.Errorf("%d launches fail of %+v", failed, document.Launches)
	}
	prompt := e.skyserve(exitUsage, up[:len(up)-1]...)
	if want := fmt.Sprintf("launch checks: %d ok", len(document.Launches)-1); !strings.Contains(prompt, want) || strings.Contains(prompt, "check ok") || !strings.Contains(prompt, "ACCELERATOR_TYPE_NOT_FOUND") {
		t.Errorf("no %q, or every check, in\n%s", want, prompt)
	}
}

// up --dry-run shows that spot capacity is unlikely before anything is launched.
func TestDryRunWarnsOfUnlikelyCapacity(t *testing.T) {
	t.Parallel()
	e := emulate(t)
	for _, zone := range []string{"us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"} {
		e.gce.SetObtainability(zone, "g2-standard-4", 0.05)
	}
	text := strings.Replace(twoClouds, "name: gcp/us-central1\n", "name: gcp/us-central1\n    capacity: [spot]\n", 1)
	out := e.skyserve(exitOK, append(e.upOf(text), "--dry-run")...)
	if want := "check WARN: gcp/us-central1: capacity of 1 g2-standard-4 (spot): obtainability 0.05, expected uptime at least 3600s in us-central1-"; !strings.Contains(out, want) || !strings.Contains(out, "the best zone: a launch is unlikely\n  hint: add capacity types, GPUs or regions") {
		t.Errorf("no %q in\n%s", want, out)
	}
}

// A launch that a cloud would reject on every offering ends up before the confirmation.
func TestUpEndsBeforeRejectedLaunches(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		prepare func(e *emulated)
		exit    int
		want    string
	}{
		"image is gone at AWS": {func(e *emulated) {
			e.aws.Configure(func() { e.aws.LacksImage = func(string, string) bool { return true } })
		}, exitUsage, "set regions[].images."},
		"image is gone at Google": {func(e *emulated) { e.gce.RemoveImageFamily("ubuntu-2204-lts") }, exitUsage, "set regions[].images.cpu of gcp/us-central1"},
		"launch is denied at AWS": {func(e *emulated) {
			e.aws.Configure(func() {
				e.aws.DenialCode = func(_, action string) string {
					if action == "ec2:RunInstances" {
						return "UnauthorizedOperation"
					}
					return ""
				}
			})
		}, exitCredentials, "permission denied for ec2:RunInstances"},
		"launch is denied at Google": {func(e *emulated) { e.gce.DenyPermissions("compute.instances.create") }, exitCredentials, "permission denied for compute.instances.create"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			tt.prepare(e)
			out := e.skyserve(tt.exit, append(e.upOf(twoClouds), "--yes")...)
			if !strings.Contains(out, tt.want) || !strings.Contains(out, provision.LaunchRejected) || strings.Contains(out, "Proceed") {
				t.Errorf("no %q in\n%s", tt.want, out)
			}
			if n := len(e.aws.RemainingResources()) + len(e.gce.Instances()) + len(e.gce.Firewalls()); n > 0 {
				t.Errorf("%d objects remain after\n%s", n, out)
			}
		})
	}
}
