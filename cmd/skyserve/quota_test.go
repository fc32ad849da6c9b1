package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testkit"
	"skyserve/provision/cloud"
)

// The needed quotas are shown before anything is launched. A plan that exceeds them, even with
// fallbacks, is rejected.
func TestUpChecksQuotas(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	enough := map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 64, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	for _, tt := range []struct {
		name   string
		limits map[string]float64 // quotas that are not sufficient
		exit   int                // exit code of up --yes
		want   []string
		never  string
	}{
		{name: "enough", want: []string{"G and VT instances as spot (L-3819A6DF) aws/us-east-1 4 vcpus 64 64", "standard instances on demand (L-1216C47A) aws/us-east-1 4 vcpus 64 64"}, never: "too low"},
		{
			name: "no spot", limits: map[string]float64{"L-3819A6DF": 3},
			want: []string{
				"aws/us-east-1 4 vcpus 3, too low 3", "VMs over quota fall back",
				"to increase L-3819A6DF: aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-3819A6DF --desired-value 4 --region us-east-1",
			},
		},
		{
			name: "no GPUs at all", limits: map[string]float64{"L-3819A6DF": 0, "L-DB2E81BA": 0}, exit: exitFailed,
			want: []string{"aws/us-east-1 4 vcpus 0, too low 0", "some VMs exceed the quotas"},
		},
		{
			name: "no balancers", limits: map[string]float64{"L-1216C47A": 2}, exit: exitFailed,
			want: []string{"aws/us-east-1 4 vcpus 2, too low 2", "--quota-code L-1216C47A --desired-value 4 --region us-east-1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			quotas := maps.Clone(enough)
			maps.Copy(quotas, tt.limits)
			e.aws.Configure(func() { e.aws.QuotaLimits = quotas })
			up := e.upOf(cloudService)
			shown := e.skyserve(exitOK, append(slices.Clone(up), "--dry-run")...)
			words := strings.Join(strings.Fields(shown), " ")
			for _, want := range tt.want {
				if !strings.Contains(words, want) {
					t.Errorf("no %q in\n%s", want, shown)
				}
			}
			if tt.never != "" && strings.Contains(words, tt.never) {
				t.Errorf("got %q:\n%s", tt.never, shown)
			}
			out := e.skyserve(tt.exit, append(up, "--yes")...)
			if tt.exit == exitOK {
				return
			}
			if remaining := e.aws.RemainingResources(); len(remaining) > 0 || !strings.Contains(out, "more VMs than the account's quotas allow") {
				t.Errorf("%q remains after\n%s", remaining, out)
			}
		})
	}
}

// A quota that cannot be read is unknown and does not block up.
func TestUpWithUnknownQuotas(t *testing.T) {
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	e := emulate(t)
	e.aws.Configure(func() {
		e.aws.DenialCode = func(_, action string) string {
			if strings.HasPrefix(action, "servicequotas:") {
				return "AccessDeniedException"
			}
			return ""
		}
	})
	e.gce.SetQuota("us-central1", "NVIDIA_L4_GPUS", 2)
	up := e.upOf(twoClouds)
	shown := e.skyserve(exitOK, append(slices.Clone(up), "--dry-run")...)
	for _, want := range []string{"L-3819A6DF aws/us-east-1 4 vcpus unknown unknown", "quotas of aws/us-east-1 are unknown:", "servicequotas:GetServiceQuota", "L4 on demand (NVIDIA_L4_GPUS) gcp/us-central1 1 gpus 2 2"} {
		if !strings.Contains(strings.Join(strings.Fields(shown), " "), want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	var document struct{ Quotas []cloud.QuotaNeed }
	e.document(&document, append(slices.Clone(up), "--dry-run", "-o", "json")...)
	for _, q := range document.Quotas {
		if known := q.Region.Cloud() == "gcp"; (q.Limit != nil) != known || (q.Used != nil) != known || q.Needs == 0 {
			t.Errorf("%+v", q)
		}
	}
	if len(document.Quotas) != 8 {
		t.Errorf("quotas: %+v", document.Quotas)
	}
}

func TestDoctorReportsQuotas(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.aws.Configure(func() {
		e.aws.QuotaLimits = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 3, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	})
	e.gce.SetQuota("us-central1", "CPUS", 1)
	doctor := e.at("doctor", e.upOf(twoClouds)[1])
	out := e.skyserve(exitFailed, doctor...)
	for _, want := range []string{
		"FAIL aws/us-east-1 G and VT instances as spot (L-3819A6DF): 0 of 3 vcpus in use, the service needs at least 4",
		"--quota-code L-3819A6DF --desired-value 4 --region us-east-1",
		"FAIL gcp/us-central1 machines without GPUs (CPUS): 0 of 1 vcpus in use, the service needs at least 2",
		"request a limit of 2 for CPUS in us-central1",
		"ok aws/us-east-1 standard instances on demand (L-1216C47A): 0 of 64 vcpus in use, the service needs at least 4",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// The service has three balancers: its controllers may replace one, which the commands of the docs do not permit.
	if err := e.gce.RunGcloud(out); err != nil { // run the printed commands
		t.Fatal(err)
	}
	e.aws.Configure(func() { e.aws.QuotaLimits["L-3819A6DF"] = 4 })
	e.gce.SetQuota("us-central1", "CPUS", 2)
	e.skyserve(exitOK, doctor...)
}

// A region without quota is accepted if another region has capacity.
func TestQuotasIncludeFallbackRegions(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.gce.SetQuota("us-central1", "NVIDIA_L4_GPUS", 0)
	for maximum, want := range map[string]string{"max: 1": "some VMs exceed the quotas", "max: 2": "VMs over quota fall back"} {
		text := strings.Replace(twoClouds, "name: aws/us-east-1\n", "name: aws/us-east-1\n    replicas: {min: 1, "+maximum+"}\n", 1)
		if shown := e.skyserve(exitOK, append(e.upOf(text), "--dry-run")...); !strings.Contains(shown, want) {
			t.Errorf("with %s in another region: no %q in\n%s", maximum, want, shown)
		}
	}
}

// The quotas of attached local SSDs are checked before anything is launched, and their price is shown.
func TestLocalSSDsAreChecked(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.gce.SetQuota("us-central1", "LOCAL_SSD_TOTAL_GB", 374)
	up := e.upOf(strings.Replace(twoClouds, "type: L4", "type: L4, local_ssds: 1", 1))
	out := strings.Join(strings.Fields(e.skyserve(exitOK, append(slices.Clone(up), "--dry-run")...)), " ")
	for _, want := range []string{
		"local SSDs (LOCAL_SSD_TOTAL_GB) gcp/us-central1 375 gb 374, too low 374", "LOCAL_SSD_TOTAL_GB_PER_VM_FAMILY (G2) gcp/us-central1 375 gb unknown unknown",
		"to increase LOCAL_SSD_TOTAL_GB: request a limit of 375 for LOCAL_SSD_TOTAL_GB in us-central1", "Google price list, us-central1, with local SSDs",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("up: no %q in\n%s", want, out)
		}
	}
	doctor := strings.Join(strings.Fields(e.skyserve(exitFailed, e.at("doctor", up[1])...)), " ")
	if want := "FAIL gcp/us-central1 local SSDs (LOCAL_SSD_TOTAL_GB): 0 of 374 gb in use, the service needs at least 375"; !strings.Contains(doctor, want) {
		t.Errorf("doctor: no %q in\n%s", want, doctor)
	}
	e.gce.SetQuota("us-central1", "LOCAL_SSD_TOTAL_GB", 375)
	e.skyserve(exitOK, append(up, "--yes")...)
	attached := 0
	for _, i := range e.gce.Instances() {
		attached += len(i.Disks) - 1
	}
	if attached != 1 {
		t.Errorf("%d local SSDs are attached, want 1", attached)
	}
}
