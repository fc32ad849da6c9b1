package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
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

// instance returns the instance id of a machine.
func (e *emulated) instance(id string) string {
	e.t.Helper()
	name, runs := e.RunningMachineIDs()[id]
	if !runs {
		e.t.Fatalf("no machine is %s", id)
	}
	return name
}

// announced returns the instance id of a machine after an announcement by its cloud.
func (e *emulated) announced(name string, err error) string {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
	return name
}

// machine waits until the cloud runs a machine of an id, or none. It is cheaper than the status.
func (e *emulated) machine(id string, runs bool) {
	e.t.Helper()
	within(e.t, fmt.Sprintf("%s runs: %t", id, runs), func() error {
		if _, is := e.RunningMachineIDs()[id]; is != runs {
			return errors.New("not yet")
		}
		return nil
	})
}

// awaitStates waits until the replicas are in these states.
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
	pids := e.unitProcesses("lb-eu-west-1-0", "controller/config.yaml")
	if len(pids) != 1 {
		e.t.Fatalf("%d controllers run there", len(pids))
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
}

// unitProcesses returns the processes of a machine's units with this file among their arguments.
func (e *emulated) unitProcesses(id, file string) (pids []int) {
	e.t.Helper()
	dir := filepath.Join(e.dir, e.instance(id), "state")
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		e.t.Fatal(err)
	}
	for _, p := range processes {
		at, _ := os.Readlink(p) // processes of other users cannot be read
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
		if at != dir || !strings.Contains(string(command), file) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err != nil {
			e.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

// chatting sends requests to a balancer until it is stopped, and returns the errors.
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

// The controller replaces a spot machine before its interruption, without failed requests, and one
// that terminates without notice, also after the controller was killed. Another balancer serves the
// replicas of a terminated one.
func TestLongControllerReconcilesCloudService(t *testing.T) {
	needsLongFlag(t)
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := e.upOf(keptService)
	out := e.skyserve(exitOK, append(up, "--yes")...)
	base := endpointIn(out, "eu-west-1") // a region without replicas
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })

	e.figures()

	stop := chatting(base)
	first := e.announced(e.SendInterruptionNotice("us-east-1-0"))
	e.machine("us-east-1-1", true)
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateInterrupted, "us-east-1-1": service.StateReady})
	e.InterruptMachine(first)
	e.machine("us-east-1-0", false)
	if err := stop(); err != nil {
		t.Errorf("during the replacement of an interrupted machine: %v", err)
	}

	e.killController()
	e.aws.TerminateInstance(e.instance("us-east-1-1"))
	e.aws.TerminateInstance(e.instance("lb-us-east-1-0"))
	e.machine("us-east-1-0", true)
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateReady})
	within(t, "a chat with the next replica by way of the other balancer", func() error { return chatAt(base, "key-of-a-client") })

	// After a rebalance recommendation, a machine is replaced first and deleted once it is drained.
	e.announced(e.SendRebalanceRecommendation("us-east-1-0"))
	stop = chatting(base)
	e.machine("us-east-1-1", true)
	e.machine("us-east-1-0", false)
	if err := stop(); err != nil {
		t.Errorf("during the replacement after a rebalance recommendation: %v", err)
	}

	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, " is down; ") {
		t.Errorf("down:\n%s", out)
	}
	e.ended()
	if remaining := e.aws.Machines(); len(remaining) > 0 {
		t.Errorf("remaining: %+v", remaining)
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

// The controller reconciles the replicas of another cloud through a balancer there: credentials of
// that cloud never leave it.
func TestControllerReconcilesSecondCloud(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	out := e.skyserve(exitOK, append(e.upOf(twoCloudService), "--yes")...)
	base := endpointIn(out, "eu-west-1")
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	// The balancer must have both: a replica whose engine has just started is probed only once a second.
	e.awaitStates(map[string]service.ReplicaState{"us-central1-0": service.StateReady, "us-central1-1": service.StateReady})

	stop := chatting(base)
	first := e.announced(e.SendInterruptionNotice("us-central1-0"))
	e.machine("us-central1-2", true)
	e.awaitStates(map[string]service.ReplicaState{"us-central1-0": service.StateInterrupted, "us-central1-1": service.StateReady, "us-central1-2": service.StateReady})
	e.InterruptMachine(first)
	e.machine("us-central1-0", false)
	if err := stop(); err != nil {
		t.Errorf("during the replacement of an interrupted machine: %v", err)
	}

	e.killController()
	e.gce.SetInstanceStatus(e.instance("us-central1-1"), "TERMINATED")
	e.awaitStates(map[string]service.ReplicaState{"us-central1-0": service.StateReady, "us-central1-2": service.StateReady})
	within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, " is down; ") {
		t.Errorf("down:\n%s", out)
	}
	e.ended()
	if remaining := e.RunningMachineIDs(); len(remaining) > 0 {
		t.Errorf("remaining: %+v", remaining)
	}
}

// figures checks the load as seen by the controller and the balancers.
func (e *emulated) figures() {
	e.t.Helper()
	within(e.t, "a plan of the controller", func() error {
		var snapshot struct {
			Plan *struct{ Status string } `json:"plan"`
		}
		e.document(&snapshot, "top", "chat", "--once", "-o", "json")
		if snapshot.Plan == nil {
			return errors.New("the snapshot has no plan")
		}
		return nil
	})
	if out := e.skyserve(exitOK, "usage", "chat"); !strings.Contains(out, "aws/eu-west-1") {
		e.t.Errorf("usage of the keys:\n%s", out)
	}
	// The region with the load has no replica.
	e.awaitOutput("m in aws/eu-west-1: ", "plan", "chat")
}

// awaitOutput waits until the output of the command contains want: the load of a minute is known only
// after it.
func (e *emulated) awaitOutput(want string, args ...string) {
	e.t.Helper()
	within(e.t, fmt.Sprintf("%q of skyserve %s", want, strings.Join(args, " ")), func() error {
		out, _ := e.command(args...).CombinedOutput() // only the output matters
		if !strings.Contains(string(out), want) {
			return fmt.Errorf("got\n%s", out)
		}
		return nil
	})
}

// Engines with a changed configuration are drained, restarted and used again, one after the other,
// without failed requests.
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
		t.Errorf("the second was drained at %d, the first at %d and ready at %d:\n%s", second, first, ready, out)
	}
	if logs := e.skyserve(exitOK, "logs", "chat", "us-east-1-1", "--endpoint-aws", e.url); !strings.Contains(logs, "speed 90") {
		t.Errorf("the second engine was not restarted:\n%s", logs)
	}
	e.followPlans()
}

// followPlans sends load to a region without replicas, and applies the plan, which launches one
// there. Applying it again changes nothing.
func (e *emulated) followPlans() {
	e.t.Helper()
	apply := e.at("plan", "chat", "--apply")
	e.awaitOutput("pass --yes to skip confirmation", apply...)
	e.awaitOutput("chat: plan applied", append(apply, "--yes")...)
	e.awaitStates(map[string]service.ReplicaState{"eu-west-1-0": service.StateReady, "us-east-1-0": service.StateReady, "us-east-1-1": service.StateReady})
	if out := e.skyserve(exitOK, append(apply, "--yes")...); !strings.Contains(out, "no change") {
		e.t.Errorf("applying it again:\n%s", out)
	}
}
