package main

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// What cannot work is named before anything is billed: no machine is launched. TestUpChecksQuotas,
// TestUpEndsBeforeRejectedLaunches and TestUpReportsExceededQuota have the cases without quota, image and capacity.
func TestUpNamesBadInputBeforeBilling(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "runs a binary of its own; other tests cover the same code")
	t.Parallel()
	reserved := strings.Replace(cloudService, "    capacity: [spot, on_demand]\n", "    reserved: [{id: cr-0abc, type: g6.xlarge, count: 1, price: 0.3}]\n    capacity: [reserved, on_demand]\n", 1)
	reserve := func(v testcloud.Reservation) func(*emulated) {
		v.ID, v.Zone, v.Type, v.Count = "cr-0abc", "us-east-1b", "g6.xlarge", 1
		return func(e *emulated) { e.aws.PutReservation("us-east-1", v) }
	}
	const google = "  - name: gcp/us-central1\n    capacity: [on_demand]\n    replicas: {min: 1, max: 1}\n"
	for name, tt := range map[string]struct {
		text    string
		prepare func(*emulated)
		exit    int
		want    []string
	}{
		"a reservation that has expired": {
			reserved, reserve(testcloud.Reservation{State: "expired", Ends: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}), exitFailed,
			[]string{"reservation cr-0abc: must be active, got state expired, ends 2026-01-02T03:04:05Z", "correct regions[0].reserved[0]"},
		},
		"a block whose payment failed": {
			reserved, reserve(testcloud.Reservation{State: "payment-failed", Block: true}), exitFailed,
			[]string{"reservation cr-0abc: must be active, got state payment-failed"},
		},
		"a region of AWS that does not exist": {
			strings.ReplaceAll(oneRegion, "aws/us-east-1", "aws/us-esat-1"), func(*emulated) {}, exitUsage,
			[]string{`is not a region of AWS, got "aws/us-esat-1"; did you mean aws/us-east-1?`},
		},
		"a bucket for files of another AWS account": {
			oneRegion + "store: {files: \"s3://theirs/batches\"}\n", func(e *emulated) {
				e.aws.Configure(func() { e.aws.ForeignBuckets = map[string]bool{"theirs": true} })
			}, exitUsage,
			[]string{provision.LaunchRejected + ": store.files: bucket theirs belongs to another AWS account"},
		},
		"a bucket for files without permission at Google": {
			strings.Replace(oneRegion, "  - name: aws/us-east-1\n", google, 1) + "store: {files: \"gs://batches\"}\n", func(e *emulated) { e.gce.AddBucket("batches") }, exitCredentials,
			[]string{"store.files: bucket batches does not grant it", "gcloud storage buckets add-iam-policy-binding gs://batches --member serviceAccount:skyserve-chat-lb@p.iam"},
		},
		"flex-start at AWS": {
			strings.Replace(cloudService, "capacity: [spot, on_demand]", "capacity: [flex_start]", 1), func(*emulated) {}, exitUsage,
			[]string{"regions[0].capacity[0]: flex_start exists in gcp regions only"},
		},
		"a bucket of another AWS account": {oneRegion, func(e *emulated) {
			e.aws.Configure(func() {
				e.aws.DenialCode = func(_, action string) string {
					if action == "s3:CreateBucket" {
						return "BucketAlreadyExists"
					}
					return ""
				}
			})
		}, exitPartial, []string{"the name is taken by another account", "--program URL", "hint: no machine was launched"}},
		"a bucket of another Google project": {
			strings.Replace(oneRegion, "  - name: aws/us-east-1\n", google, 1), func(e *emulated) {
				e.gce.FailCalls("storage.buckets.insert", http.StatusConflict, "conflict", "The requested bucket name is not available.")
			}, exitPartial,
			[]string{"the name is taken by another account", "--program URL", "hint: no machine was launched"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			e.program = filepath.Join(e.dir, "operator", "skyserve")
			linkProgram(t, e.program)
			tt.prepare(e)
			out := e.skyserve(tt.exit, e.at("up", e.upOf(tt.text)[1], "--yes")...)
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if strings.Contains(out, provision.LaunchRejected) && !strings.Contains(name, "for files") {
				t.Errorf("a launch was checked and rejected:\n%s", out)
			}
			left := e.aws.RemainingResources()
			billed := slices.ContainsFunc(left, func(what string) bool {
				return strings.HasPrefix(what, "instance") || strings.HasPrefix(what, "bucket")
			})
			if billed || tt.exit != exitPartial && len(left) > 0 || len(e.gce.Instances())+e.RunningAgents() > 0 {
				t.Errorf("%q and %d machines at Google remain after\n%s", left, len(e.gce.Instances()), out)
			}
		})
	}
}
