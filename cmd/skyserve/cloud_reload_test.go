package main

import (
	"strings"
	"testing"

	"skyserve/internal/testcloud/machines"
	"skyserve/internal/testkit"
)

// A setting that balancers in a cloud reload is a change: the preview and up show who reloads it.
func TestUpShowsReloadsInCloud(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "starts the machines of a service; other tests cover the same code")
	t.Parallel()
	e := emulateWith(t, machines.Options{})
	e.skyserve(exitOK, append(e.upOf(updatedService), "--yes")...)
	up := append(e.upOf(strings.Replace(updatedService, "balancer:", "balancer:\n  max_wait: 33s", 1)), "--yes")
	if out := e.skyserve(exitChanges, append(up, "--dry-run", "--detailed-exitcode")...); !strings.Contains(out, "reload: configuration changed") {
		t.Errorf("the preview:\n%s", out)
	}
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "reload: configuration changed") || !strings.Contains(out, "reloaded lb-us-east-1-0") || strings.Contains(out, "no change") {
		t.Errorf("up:\n%s", out)
	}
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	e.downAndCheckEmpty()
}
