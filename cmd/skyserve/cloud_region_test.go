package main

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// listReplicas checks that replicas in clouds are listed, and cannot be drained.
func (e *emulated) listReplicas() {
	e.t.Helper()
	table := e.skyserve(exitOK, "replica", "list", "--endpoint-aws", e.url)
	if !hasRow(table, []string{"us-east-1-0", "aws/us-east-1", "READY", " m "}) || strings.Contains(table, "lb-us-east-1-0 ") && !strings.Contains(table, "BALANCER") {
		e.t.Errorf("replica list:\n%s", table)
	}
	var all []deploy.MachineStatus
	e.document(&all, "replica", "list", "-o", "json", "--endpoint-aws", e.url)
	if len(all) != 1 || all[0].ID != "us-east-1-0" || all[0].State != service.StateReady || all[0].Model != "m" || !strings.HasSuffix(all[0].URL, ":8300") {
		e.t.Errorf("replica list -o json: %+v", all)
	}
	if out := e.skyserve(exitUsage, "replica", "drain", "us-east-1-0"); !strings.Contains(out, "us-east-1") {
		e.t.Errorf("replica drain:\n%s", out)
	}
}

// Firewalls of replicas in a service with one region admit only that region's balancers. With a
// second region, they admit all addresses, and replicas check the certificates of balancers.
func TestServiceInOneRegion(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(oneRegion), "--yes")
	first := e.skyserve(exitOK, up...)
	within(t, "a chat", func() error { return chatAt(endpointIn(first, "us-east-1"), "key-of-a-client") })
	rules := e.aws.SecurityGroupRules("us-east-1", "skyserve-chat-replica")
	if len(rules) == 0 || slices.ContainsFunc(rules, func(r string) bool { return strings.Contains(r, "/0") }) {
		t.Errorf("in one region replicas admit %q, want balancers only", rules)
	}
	if s := e.status(); s.State != deploy.StateReady || len(s.Drift) > 0 {
		t.Errorf("in one region: %+v", s)
	}
	e.listReplicas()
	grown := append(e.upOf(strings.Replace(oneRegion, "  - name: aws/us-east-1\n", "  - name: aws/us-east-1\n  - name: aws/eu-west-1\n", 1)), "--yes")
	if out := e.skyserve(exitOK, grown...); !strings.Contains(out, "firewall-us-east-1-replica") {
		t.Errorf("grown:\n%s", out)
	}
	if rules := e.aws.SecurityGroupRules("us-east-1", "skyserve-chat-replica"); !slices.ContainsFunc(rules, func(r string) bool { return strings.HasSuffix(r, " 0.0.0.0/0") }) {
		t.Errorf("in two regions replicas admit %q", rules)
	}
}
