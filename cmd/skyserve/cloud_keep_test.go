package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

const keptService = `
name: chat
models:
  - name: m
    engine: {kind: sim, speed: 100}
    gpus: [{type: L4}]
    regions: {"aws/eu-west-1": {min: 0, max: 0}}
regions:
  - name: aws/eu-west-1
  - name: aws/us-east-1
    balancers: 2
    replicas: {min: 1, max: 2}
    capacity: [spot, on_demand]
balancer:
  auth: {keys_from: env:KEYS}
  insecure: true
`

// instance is what the cloud calls the machine of an id.
func (e *emulated) instance(id string) string {
	e.t.Helper()
	name, runs := e.Runs()[id]
	if !runs {
		e.t.Fatalf("no machine is %s", id)
	}
	return name
}

// announced is what a cloud calls a machine that it announced something to.
func (e *emulated) announced(name string, err error) string {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
	return name
}

// machine waits until the cloud runs a machine of an id, or none, which costs less than to
// ask for the status.
func (e *emulated) machine(id string, runs bool) {
	e.t.Helper()
	within(e.t, fmt.Sprintf("%s runs: %t", id, runs), func() error {
		if _, is := e.Runs()[id]; is != runs {
			return errors.New("not yet")
		}
		return nil
	})
}

// become waits until machines are in these states.
func (e *emulated) awaitStates(want map[string]service.ReplicaState) {
	e.t.Helper()
	within(e.t, fmt.Sprintf("the replicas are %v", want), func() error {
		of := states(e.status())
		maps.DeleteFunc(of, func(id string, _ service.ReplicaState) bool { return strings.HasPrefix(id, "lb-") })
		if !maps.Equal(of, want) {
			return fmt.Errorf("they are %v", of)
		}
		return nil
	})
}

// killController kills the controller's process, which its machine's agent starts again.
func (e *emulated) killController() {
	e.t.Helper()
	dir := filepath.Join(e.dir, e.instance("lb-eu-west-1-0"), "state")
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		e.t.Fatal(err)
	}
	for _, p := range processes {
		at, _ := os.Readlink(p) // processes of others cannot be looked at
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
		if at != dir || !strings.Contains(string(command), "controller/config.yaml") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			e.t.Fatal(err)
		}
		return
	}
	e.t.Fatalf("no controller runs in %s", dir)
}

// chatting asks a balancer again and again until it is stopped, and returns what failed.
func chatting(base string) (stop func() error) {
	var asking sync.WaitGroup
	end := make(chan struct{})
	var failed error
	asking.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if err := chatAt(base, "key-of-a-client"); err != nil {
				failed = errors.Join(failed, err)
			}
		}
	})
	return func() error {
		close(end)
		asking.Wait()
		return failed
	}
}

// The controller of a service in a cloud replaces a spot machine before it is taken, so
// that no client notices, and one that is gone without a word, also where the controller
// was killed; and a balancer's replicas are served by another one when it is gone.
func TestControllerReconcilesCloudService(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := e.upOf(keptService)
	out := e.skyserve(exitOK, append(up, "--yes")...)
	base := endpointIn(out, "eu-west-1") // which has no replica of its own
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })

	e.figures()

	stop := chatting(base)
	first := e.announced(e.Announce("us-east-1-0"))
	e.machine("us-east-1-1", true)
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateInterrupted, "us-east-1-1": service.StateReady})
	e.Take(first)
	e.machine("us-east-1-0", false)
	if err := stop(); err != nil {
		t.Errorf("while a machine was replaced that was taken: %v", err)
	}

	e.killController()
	e.aws.Vanish(e.instance("us-east-1-1"))
	e.aws.Vanish(e.instance("lb-us-east-1-0"))
	e.machine("us-east-1-0", true)
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateReady})
	within(t, "a chat with the next replica by way of the other balancer", func() error { return chatAt(base, "key-of-a-client") })

	// One that is to be left is replaced at leisure, and given back once it is empty.
	e.announced(e.Advise("us-east-1-0"))
	stop = chatting(base)
	e.machine("us-east-1-1", true)
	e.machine("us-east-1-0", false)
	if err := stop(); err != nil {
		t.Errorf("while a machine was replaced that was to be left: %v", err)
	}

	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, " is down; ") {
		t.Errorf("down:\n%s", out)
	}
	e.ended()
	if left := e.aws.Machines(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

const twoCloudService = `
name: chat
models:
  - name: m
    engine: {kind: sim, speed: 100}
    gpus: [{type: L4}]
    regions: {"aws/eu-west-1": {min: 0, max: 0}}
regions:
  - name: aws/eu-west-1
  - name: gcp/us-central1
    replicas: {min: 2, max: 3}
    capacity: [spot, on_demand]
balancer:
  auth: {keys_from: env:KEYS}
  insecure: true
`

// The controller keeps the replicas of a cloud that it is not in, by way of a balancer
// there: keys of that cloud never leave it.
func TestControllerReconcilesSecondCloud(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	out := e.skyserve(exitOK, append(e.upOf(twoCloudService), "--yes")...)
	base := endpointIn(out, "eu-west-1")
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })

	stop := chatting(base)
	first := e.announced(e.Announce("us-central1-0"))
	e.machine("us-central1-2", true)
	e.awaitStates(map[string]service.ReplicaState{"us-central1-0": service.StateInterrupted, "us-central1-1": service.StateReady, "us-central1-2": service.StateReady})
	e.Take(first)
	e.machine("us-central1-0", false)
	if err := stop(); err != nil {
		t.Errorf("while a machine was replaced that was taken: %v", err)
	}

	e.killController()
	e.gce.SetStatus(e.instance("us-central1-1"), "TERMINATED")
	e.awaitStates(map[string]service.ReplicaState{"us-central1-0": service.StateReady, "us-central1-2": service.StateReady})
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, " is down; ") {
		t.Errorf("down:\n%s", out)
	}
	e.ended()
	if left := e.Runs(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// figures looks at what the controller and the balancers know of the load.
func (e *emulated) figures() {
	e.t.Helper()
	within(e.t, "a plan of the controller", func() error {
		var snapshot struct {
			Plan *struct{ Status string } `json:"plan"`
		}
		text := e.skyserve(exitOK, "top", "chat", "--once", "-o", "json")
		if err := json.Unmarshal([]byte(text), &snapshot); err != nil || snapshot.Plan == nil {
			return fmt.Errorf("%v in %s", err, text)
		}
		return nil
	})
	if out := e.skyserve(exitOK, "usage", "chat"); !strings.Contains(out, "aws/eu-west-1") {
		e.t.Errorf("what its keys used:\n%s", out)
	}
	// The region with the load must have none of its own.
	e.awaitOutput("m in aws/eu-west-1: needs", "plan", "chat")
}

// says waits until the command prints something: of a minute that has just begun no
// load is known.
func (e *emulated) awaitOutput(want string, args ...string) {
	e.t.Helper()
	within(e.t, fmt.Sprintf("%q of skyserve %s", want, strings.Join(args, " ")), func() error {
		out, _ := e.command(args...).CombinedOutput() // what it prints is looked at
		if !strings.Contains(string(out), want) {
			return fmt.Errorf("got\n%s", out)
		}
		return nil
	})
}

// Engines that are to run otherwise are emptied, started again and used again one after
// the other: no client notices.
func TestUpReplacesReplicasOneByOne(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	text := strings.NewReplacer("min: 1, max: 2", "min: 2, max: 2", "min: 0, max: 0", "min: 0, max: 1").Replace(keptService)
	out := e.skyserve(exitOK, append(e.upOf(text), "--yes")...)
	base := endpointIn(out, "eu-west-1")
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	stop := chatting(base)
	out = e.skyserve(exitOK, e.upOf(strings.Replace(text, "speed: 100", "speed: 90", 1))...)
	if err := stop(); err != nil {
		t.Errorf("while engines changed: %v", err)
	}
	first, second := strings.Index(out, "  us-east-1-0 draining"), strings.Index(out, "  us-east-1-1 draining")
	if ready := strings.Index(out, "  us-east-1-0 ready"); first < 0 || ready < first || second < ready {
		t.Errorf("the second was emptied at %d, the first at %d and ready at %d:\n%s", second, first, ready, out)
	}
	if logs := e.skyserve(exitOK, "logs", "chat", "us-east-1-1", "--endpoint-aws", e.url); !strings.Contains(logs, "speed 90") {
		t.Errorf("the second engine was not started again:\n%s", logs)
	}
	e.followPlans()
}

// followPlans: clients come to a region that has no replica of its own, so that a plan
// wants one there. It is launched, serves and stays; a second time there is nothing to do.
func (e *emulated) followPlans() {
	e.t.Helper()
	apply := e.at("plan", "chat", "--apply")
	e.awaitOutput("pass --yes to skip confirmation", apply...)
	e.awaitOutput("chat: plan applied", append(apply, "--yes")...)
	e.awaitStates(map[string]service.ReplicaState{"eu-west-1-0": service.StateReady, "us-east-1-0": service.StateReady, "us-east-1-1": service.StateReady})
	if out := e.skyserve(exitOK, append(apply, "--yes")...); !strings.Contains(out, "no change") {
		e.t.Errorf("following it again:\n%s", out)
	}
}
