package main

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// Replicas of a cloud service can be added and removed by hand after confirmation, without failed
// requests. One that was added is replaced when it is lost.
func TestReplicaCommandsInCloud(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := e.upOf(strings.Replace(keptService, "min: 1, max: 2", "min: 1, max: 3", 1))
	base := endpointIn(e.skyserve(exitOK, append(up, "--yes")...), "eu-west-1")
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	replica := func(code int, want string, args ...string) {
		t.Helper()
		if out := e.skyserve(code, e.at(append([]string{"replica"}, args...)...)...); !strings.Contains(out, want) {
			t.Errorf("skyserve replica %s: no %q in\n%s", strings.Join(args, " "), want, out)
		}
	}
	runs := func(n int) {
		t.Helper()
		if got := e.RunningAgents(); got != n {
			t.Errorf("%d machines run, want %d", got, n)
		}
	}

	// Changes that service.yaml does not allow or that were not confirmed are not applied.
	replica(exitUsage, `--gpu must be a GPU of m in service.yaml (L4), got "H100"`, "add", "us-east-1", "--gpu", "H100", "--yes")
	replica(exitUsage, `--capacity must be a capacity type of aws/us-east-1 in service.yaml (spot, on_demand), got "reserved"`, "add", "us-east-1", "--capacity", "reserved", "--yes")
	replica(exitUsage, "--count 3: m has 1 replica in aws/us-east-1, and replicas.max in service.yaml is 3", "add", "us-east-1", "--count", "3", "--yes")
	replica(exitUsage, "m in aws/us-east-1: replicas must be 1 to 3 (replicas.min and max of service.yaml), would be 0", "remove", "us-east-1-0", "--yes")
	replica(exitFailed, `the service has no replica "us-east-1-7"`, "remove", "us-east-1-7", "--yes")
	replica(exitUsage, "pass --yes to skip confirmation", "add", "us-east-1")
	replica(exitUsage, "'skyserve replica remove ID' drains and deletes the VM", "drain", "us-east-1-0")
	replica(exitUsage, "cannot be drained or donated manually", "donate", "us-east-1-0")
	runs(4)

	stop := chatting(base)
	replica(exitOK, "+ replica  us-east-1-1", "add", "us-east-1", "--gpu", "L4", "--capacity", "spot", "--yes")
	runs(5)
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateReady, "us-east-1-1": service.StateReady})
	// An on-demand replica would be replaced by spot, which service.yaml lists first.
	if out := e.skyserve(exitOK, e.at("status", "chat")...); strings.Count(out, "spot g6.xlarge in us-east-1") != 2 {
		t.Errorf("a spot replica was replaced by another:\n%s", out)
	}
	replica(exitOK, "draining us-east-1-0", "remove", "us-east-1-0", "--yes", "--reason", "bad disk")
	out := e.skyserve(exitOK, "events", "chat", "--kind", "launch,termination", "-o", "json")
	for _, want := range []string{
		`"kind":"launch","region":"aws/us-east-1","object":"us-east-1-1","message":"launched us-east-1-1","reason":"skyserve replica add; `,
		`"kind":"termination","region":"aws/us-east-1","object":"us-east-1-0","message":"removed us-east-1-0","reason":"bad disk; `,
	} {
		if !regexp.MustCompile(`"actor":"operator:[^"]+@[^"]+",` + want).MatchString(out) {
			t.Errorf("no event %s in\n%s", want, out)
		}
	}
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-1": service.StateReady})
	if err := stop(); err != nil {
		t.Errorf("while replicas were added and removed: %v", err)
	}
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "no change") {
		t.Errorf("up reverts manual changes:\n%s", out)
	}

	// One above replicas.min that ends without a notice is replaced.
	replica(exitOK, "+ replica  us-east-1-0", "add", "us-east-1", "--yes")
	within(t, "the controller has seen us-east-1-0", func() error {
		var snapshot struct {
			Regions []struct {
				Replicas []struct {
					ID         string
					ReadySince *time.Time `json:"ready_since"`
				}
			}
		}
		e.document(&snapshot, "top", "chat", "--once", "-o", "json")
		for _, region := range snapshot.Regions {
			for _, r := range region.Replicas {
				if r.ID == "us-east-1-0" && r.ReadySince != nil {
					return nil
				}
			}
		}
		return errors.New("it has not")
	})
	lost := e.instance("us-east-1-0")
	e.aws.TerminateInstance(lost)
	within(t, "another machine of us-east-1-0", func() error {
		if now, runs := e.RunningMachineIDs()["us-east-1-0"]; !runs || now == lost {
			return errors.New("there is none")
		}
		return nil
	})
}
