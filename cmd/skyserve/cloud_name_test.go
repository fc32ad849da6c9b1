package main

import (
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// A name that cannot be had is found out before anything is rented.
func TestUpWithANameThatCannotBeHad(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "it takes minutes with the detector on, and goes ways that others go")
	t.Parallel()
	ttl := int64(300)
	for name, tt := range map[string]struct {
		yaml    [2]string // what is replaced in the service, and by what
		prepare func(e *emulated) error
		exit    int
		says    []string
	}{
		"no such zone": {
			yaml: [2]string{"name: chat.example.com, zone: example.com", "name: chat.example.net, zone: example.net"}, exit: exitUsage,
			says: []string{"finding the hosted zone example.net: no public zone of that name in this AWS account; its zones are: example.com (public, Z"},
		},
		"two zones of the name": {
			prepare: func(e *emulated) error { e.names.AddZone("example.com", false); return nil }, exit: exitUsage,
			says: []string{"finding the hosted zone example.com: found several zones"},
		},
		"a record by hand": {
			prepare: func(e *emulated) error {
				return e.names.AddRecords(e.zone, testcloud.RecordSet{Name: "chat.example.com", Type: "A", TTL: &ttl, ResourceRecords: &testcloud.Values{ResourceRecord: []testcloud.Value{{Value: "192.0.2.1"}}}})
			}, exit: exitFailed,
			says: []string{"record chat.example.com in zone example.com (public, Z", "belongs to another owner (made by hand: chat.example.com A 192.0.2.1)", "hint: choose another name"},
		},
		"zones may not be listed": {
			prepare: func(e *emulated) error {
				e.names.Set(func() { e.names.Deny = map[string]string{"route53:ListHostedZonesByName": "AccessDenied"} })
				return nil
			}, exit: exitCredentials,
			says: []string{"reaching aws: route53:ListHostedZonesByName is not allowed", "hint: allow route53:"},
		},
		"health checks may not be listed": {
			prepare: func(e *emulated) error {
				e.names.Set(func() { e.names.Deny = map[string]string{"route53:ListHealthChecks": "AccessDenied"} })
				return nil
			}, exit: exitCredentials,
			says: []string{"reaching aws: route53:ListHealthChecks is not allowed"},
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
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("up does not say %q:\n%s", want, out)
				}
				if !strings.Contains(strings.Join(strings.Fields(doctor), " "), want) {
					t.Errorf("doctor does not say %q:\n%s", want, doctor)
				}
			}
			if left := e.aws.Left(); len(left) > 0 || e.Running() > 0 {
				t.Errorf("there is %q after\n%s", left, out)
			}
		})
	}
}

// The name of a service that is up is its own, and doctor knows it where it was brought up.
func TestANameOfOnesOwn(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(cloudService), "--yes")
	e.skyserve(exitOK, up...)
	e.aws.Set(func() {
		e.aws.Quotas = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 64, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	})
	if out := e.skyserve(exitOK, e.at("doctor", up[1])...); !strings.Contains(out, "name chat.example.com: its zone is there, and nobody else has it") {
		t.Errorf("doctor says\n%s", out)
	}
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
}

// Machines of one's own have no balancer that the name could lead to: nobody has to know
// where they are.
func TestANameBesideMachinesOfOnesOwn(t *testing.T) {
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(cloudService, "balancer:\n", "  - name: static/rack-7\n    endpoints: [\"http://127.0.0.1:9\"]\nbalancer:\n", 1)
	if out := e.skyserve(exitOK, append(e.upOf(text), "--dry-run")...); !strings.Contains(out, "lb-eu-west-1-0") {
		t.Errorf("up --dry-run:\n%s", out)
	}
}
