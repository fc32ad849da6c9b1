package main

import (
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// A name that cannot be used is reported before anything is launched.
func TestUpAndDoctorReportNameErrors(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	ttl := int64(300)
	for name, tt := range map[string]struct {
		yaml    [2]string // old and new text in service.yaml
		prepare func(e *emulated) error
		exit    int
		want    []string
	}{
		"missing zone": {
			yaml: [2]string{"name: chat.example.com, zone: example.com", "name: chat.example.net, zone: example.net"}, exit: exitUsage,
			want: []string{"finding the hosted zone example.net: no public hosted zone of that name in this AWS account; existing hosted zones: example.com (public, Z"},
		},
		"two zones of one name": {
			prepare: func(e *emulated) error { e.names.AddZone("example.com", false); return nil }, exit: exitUsage,
			want: []string{"finding the hosted zone example.com: name must be unique in this AWS account"},
		},
		"manual record": {
			prepare: func(e *emulated) error {
				return e.names.AddRecords(e.zone, testcloud.RecordSet{Name: "chat.example.com", Type: "A", TTL: &ttl, ResourceRecords: &testcloud.Values{ResourceRecord: []testcloud.Value{{Value: "192.0.2.1"}}}})
			}, exit: exitFailed,
			want: []string{"DNS name chat.example.com in hosted zone example.com (public, Z", "belongs to another owner (not created by skyserve: chat.example.com A 192.0.2.1)", "hint: choose another name"},
		},
		"listing zones denied": {
			prepare: func(e *emulated) error {
				e.names.Configure(func() { e.names.DenialCodes = map[string]string{"route53:ListHostedZonesByName": "AccessDenied"} })
				return nil
			}, exit: exitCredentials,
			want: []string{"calling aws: permission denied for route53:ListHostedZonesByName", "hint: allow route53:"},
		},
		"listing health checks denied": {
			prepare: func(e *emulated) error {
				e.names.Configure(func() { e.names.DenialCodes = map[string]string{"route53:ListHealthChecks": "AccessDenied"} })
				return nil
			}, exit: exitCredentials,
			want: []string{"calling aws: permission denied for route53:ListHealthChecks"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			if tt.prepare != nil {
				if err := tt.prepare(e); err != nil {
					t.Fatal(err)
				}
			}
			up := e.upOf(strings.Replace(cloudService, tt.yaml[0], tt.yaml[1], 1))
			doctor := e.skyserve(exitFailed, e.at("doctor", up[1])...)
			out := e.skyserve(tt.exit, append(up, "--yes")...)
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in the output of up:\n%s", want, out)
				}
				if !strings.Contains(strings.Join(strings.Fields(doctor), " "), want) {
					t.Errorf("no %q in the output of doctor:\n%s", want, doctor)
				}
			}
			if remaining := e.aws.RemainingResources(); len(remaining) > 0 || e.RunningAgents() > 0 {
				t.Errorf("%q remains after\n%s", remaining, out)
			}
		})
	}
}

// Doctor accepts the name of a running service on the machine from which it was deployed.
func TestDoctorAcceptsOwnName(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(cloudService), "--yes")
	e.skyserve(exitOK, up...)
	e.aws.Configure(func() {
		e.aws.QuotaLimits = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 64, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	})
	if out := e.skyserve(exitOK, e.at("doctor", up[1])...); !strings.Contains(out, "DNS name chat.example.com: its hosted zone exists, and no other service owns the name") {
		t.Errorf("doctor printed\n%s", out)
	}
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
}

// A static region beside cloud regions has no balancer, so its location need not be known for the name.
func TestUpWithNameAndStaticRegion(t *testing.T) {
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(cloudService, "balancer:\n", "  - name: static/rack-7\n    endpoints: [\"http://127.0.0.1:9\"]\nbalancer:\n", 1)
	if out := e.skyserve(exitOK, append(e.upOf(text), "--dry-run")...); !strings.Contains(out, "lb-eu-west-1-0") {
		t.Errorf("up --dry-run:\n%s", out)
	}
}
