package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// published returns a local service whose balancer has a public address.
func published(port int, dns string) string {
	return fmt.Sprintf(`name: chat
models: [{name: m, engine: {kind: sim}}]
regions: [{name: local/eu, replicas: {min: 1, max: 5}, public: ["http://203.0.113.7:8001"]}]
local: {port: %d}
%s
`, port, dns)
}

// records returns the names and types of the records in the hosted zone.
func (e *emulated) records() (all []string) {
	for _, s := range e.names.RecordSets(e.zone) {
		all = append(all, s.Name+" "+s.Type)
	}
	return all
}

// The name of a local service is published in a hosted zone, updated with service.yaml, and deleted
// with the service.
func TestUpPublishesLocalServiceInHostedZone(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e, port := emulate(t), testkit.LocalPort()
	t.Cleanup(func() { _ = e.command(e.at("down", "chat")...).Run() }) // if the test fails before down
	want := func(name string) []string {
		return []string{name + ". A", "_skyserve." + name + ". TXT", "eu-central-1._skyserve." + name + ". A"}
	}
	for _, step := range []struct {
		dns  string
		want []string
	}{
		{"dns: {provider: route53, name: chat.example.com, zone: example.com}", want("chat.example.com")},
		{"dns: {provider: route53, name: talk.example.com, zone: example.com}", want("talk.example.com")},
		{"", nil},
		{"dns: {provider: route53, name: chat.example.com, zone: example.com, routing: geo}", want("chat.example.com")},
	} {
		e.skyserve(exitOK, e.localUpOf(published(port, step.dns))...)
		if got := e.records(); !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.dns, got, step.want)
		}
	}
	checks, _ := e.names.HealthChecks()
	if len(checks) != 1 || checks[0].HealthCheckConfig.ResourcePath != "/readyz" || checks[0].HealthCheckConfig.IPAddress != "203.0.113.7" {
		t.Errorf("health checks: %+v", checks)
	}
	// The name is deleted even if service.yaml is damaged.
	if err := os.WriteFile(filepath.Join(e.dir, "home", "services", "chat", "service.yaml"), []byte("name: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := e.skyserve(exitOK, e.at("down", "chat")...); !strings.Contains(out, " is down; ") {
		t.Errorf("down:\n%s", out)
	}
	if checks, _ := e.names.HealthChecks(); len(checks)+len(e.records()) > 0 {
		t.Errorf("remaining: %q, %+v", e.records(), checks)
	}
}

// A name of another owner is not changed, and nothing is started. A name that cannot be deleted is
// reported, and can be deleted later.
func TestUpAndDownReportLocalNameErrors(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e, port := emulate(t), testkit.LocalPort()
	t.Cleanup(func() { _ = e.command(e.at("down", "chat")...).Run() }) // if the test fails before down
	ttl := int64(60)
	theirs := testcloud.RecordSet{Name: "talk.example.com", Type: "A", TTL: &ttl, ResourceRecords: &testcloud.Values{ResourceRecord: []testcloud.Value{{Value: "192.0.2.1"}}}}
	if err := e.names.AddRecords(e.zone, theirs); err != nil {
		t.Fatal(err)
	}
	out := e.skyserve(exitFailed, e.localUpOf(published(port, "dns: {provider: route53, name: talk.example.com, zone: example.com}"))...)
	if !strings.Contains(out, "belongs to another owner") || strings.Contains(out, "started") {
		t.Errorf("a name of another owner:\n%s", out)
	}
	e.skyserve(exitOK, e.localUpOf(published(port, "dns: {provider: route53, name: chat.example.com, zone: example.com}"))...)
	e.names.Configure(func() { e.names.DenialCodes = map[string]string{"route53:ChangeResourceRecordSets": "AccessDenied"} })
	out = e.skyserve(exitPartial, e.at("down", "chat")...)
	for _, want := range []string{"stopped lb-eu-0", "stopped eu-0", "the DNS name chat.example.com: ", "route53:ChangeResourceRecordSets", "hint: retry"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output of down:\n%s", want, out)
		}
	}
	e.names.Configure(func() { e.names.DenialCodes = nil })
	e.skyserve(exitOK, e.at("down", "chat")...)
	if got := e.records(); !slices.Equal(got, []string{"talk.example.com. A"}) {
		t.Errorf("the records are %q", got)
	}
}

// Regions to which the name cannot resolve are rejected.
func TestLocalNameProblems(t *testing.T) {
	const hosted, embedded = "provider: route53, name: chat.example.com, zone: example.com", "provider: embedded, name: chat.example.com"
	for _, tt := range []struct{ region, dns, want string }{
		{"{name: local/us}", hosted, "dns.provider: a public name cannot resolve to the balancers of regions[0] (local/us)"},
		{`{name: local/us, public_urls: ["http://127.0.0.1:8001"]}`, hosted, "regions[0].public_urls[0]: must not be a loopback address"},
		{`{name: local/us, public_urls: ["http://[::1]:8001"]}`, hosted, "regions[0].public_urls[0]: must not be a loopback address"},
		{`{name: local/basement, public: ["http://203.0.113.7"]}`, hosted, "regions[0].name: finding the AWS region nearest to local/basement"},
		{`{name: local/basement, public: ["http://127.0.0.1:8001"]}`, embedded, ""},
		{`{name: local/us, public: ["http://203.0.113.7"]}`, hosted, ""},
	} {
		spec, err := service.Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: ["+tt.region+"]\ndns: {"+tt.dns+"}\n"))
		if err == nil && len(localNameProblems(spec)) > 0 {
			err = localNameProblems(spec)
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s, %s: got %v, want %q", tt.region, tt.dns, err, tt.want)
		}
	}
}
