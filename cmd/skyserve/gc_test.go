package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/testkit"
)

// gc deletes the resources of a service whose operator keys are lost, including its name and health
// checks. With the keys, it deletes nothing.
func TestGCDeletesOrphans(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.skyserve(exitOK, append(e.upOf(cloudService), "--yes")...)
	gc := e.at("gc", "--region", "aws/us-east-1", "--region", "aws/eu-west-1", "--dns-zone", "example.com")
	if out := e.skyserve(exitOK, append(gc, "--yes")...); !strings.Contains(out, "no orphaned resources") {
		t.Errorf("for a service of this machine:\n%s", out)
	}
	home := filepath.Join(e.dir, "home")
	if err := os.Rename(home, home+".lost"); err != nil {
		t.Fatal(err)
	}
	out := e.skyserve(exitOK, append(gc, "--dry-run")...)
	for _, want := range []string{"replica   us-east-1-0", "chat     -           name      chat.example.com", "11 orphaned", "firewall-eu-west-1-replica"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("no %q in the list:\n%s", want, out)
		}
	}
	if out := e.skyserve(exitUsage, gc...); !strings.Contains(out, "pass --yes to skip confirmation") || e.RunningAgents() != 4 {
		t.Errorf("without a terminal %d machines remain:\n%s", e.RunningAgents(), out)
	}
	if out := e.skyserve(exitUsage, append(gc, "-o", "json")...); !strings.Contains(out, "firewall-eu-west-1-replica") || !strings.Contains(out, "11 orphaned") || strings.Contains(out, "{") {
		t.Errorf("the question about a document comes without the list:\n%s", out)
	}
	var report struct {
		Orphans []struct{ ID string }
		Names   []struct{ Name, Service string }
		Removed int
	}
	e.document(&report, append(gc, "--yes", "-o", "json")...)
	if len(report.Names) != 1 || report.Names[0].Name != "chat.example.com" || report.Removed != len(report.Orphans)+1 {
		t.Errorf("got %+v", report)
	}
	e.ended()
	checks, _ := e.names.HealthChecks()
	if remaining := e.aws.RemainingResources(); len(remaining)+len(checks)+len(e.names.RecordSets(e.zone)) > 0 {
		t.Errorf("remaining: %q, %+v, %+v", remaining, checks, e.names.RecordSets(e.zone))
	}
}
