package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// envEngineStart is the duration that engines of emulated machines take to start.
const envEngineStart = "SKYSERVE_TEST_ENGINE_START"

// engineStart is 12 minutes of a real engine at the scale 1:60.
const engineStart = 12 * time.Minute / 60

// slowEngines is the environment of machines whose engines take engineStart to start.
var slowEngines = envEngineStart + "=" + engineStart.String()

// awaitEngineStart delays an engine of an emulated machine.
func awaitEngineStart(args []string) {
	if d, err := time.ParseDuration(os.Getenv(envEngineStart)); err == nil && slices.Contains(args[:min(1, len(args))], "engine") {
		time.Sleep(d)
	}
}

// namedRegion is oneRegion with a public name.
var namedRegion = strings.Replace(oneRegion, "balancer:\n", "dns: {provider: route53, name: chat.example.com, zone: example.com}\nbalancer:\n", 1)

// The name is published while engines still start; up ends when they are ready.
func TestUpWithSlowEnginesPublishesFirst(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t, slowEngines)
	out := e.skyserve(exitOK, append(e.upOf(namedRegion), "--yes")...)
	t.Log(out)
	balancer, published, ready := strings.Index(out, "lb-us-east-1-0 ready"), strings.Index(out, "published chat.example.com"), strings.Index(out, " us-east-1-0 ready")
	if balancer < 0 || published < balancer || ready < published {
		t.Errorf("want the balancer ready, then the name published, then the replica ready:\n%s", out)
	}
	e.downAndCheckEmpty()
}

// With --wait balancers or none, up ends while engines still start; the controller completes the replicas.
func TestUpLeavesReplicasToController(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	for _, mode := range []string{"balancers", "none"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := emulate(t, slowEngines)
			out := e.skyserve(exitOK, append(e.upOf(namedRegion), "--yes", "--wait", mode)...)
			if strings.Contains(out, " us-east-1-0 ready") || !strings.Contains(out, "skyserve status chat -w") {
				t.Errorf("up waited for the replica, or does not tell how to follow it:\n%s", out)
			}
			if got := e.names.ResolveName(e.zone, "chat.example.com", "us-east-1"); len(got) != 1 {
				t.Errorf("the name resolves to %v, want the balancer", got)
			}
			e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateReady})
			e.downAndCheckEmpty()
		})
	}
}

// After a kill of up, the controller completes the replicas.
func TestControllerFinishesKilledUp(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t, slowEngines)
	cmd := e.command(append(e.upOf(namedRegion), "--yes")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	within(t, "the name is published", func() error {
		if len(e.names.ResolveName(e.zone, "chat.example.com", "us-east-1")) != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateReady})
	e.downAndCheckEmpty()
}

func TestWaitFlag(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want waitMode // empty = rejected
	}{
		{[]string{"f"}, waitReplicas},
		{[]string{"f", "--wait"}, waitReplicas},
		{[]string{"--wait=true", "f"}, waitReplicas},
		{[]string{"f", "--wait=false"}, waitNone},
		{[]string{"--wait=balancers", "f"}, waitBalancers},
		{[]string{"--wait", "balancers", "f"}, waitBalancers},
		{[]string{"f", "--wait", "none"}, waitNone},
		{[]string{"f", "none"}, ""},
		{[]string{"f", "--wait=all"}, ""},
		{[]string{"f", "--wait", "all"}, ""},
	} {
		var m waitMode
		cmd := &cobra.Command{Use: "up", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			return argsBetween(1, 1, "FILE")(cmd, takeWaitValue(cmd, args, &m))
		}
		registerWaitFlag(cmd, &m)
		cmd.SetArgs(tt.args)
		if err := cmd.Execute(); err != nil != (tt.want == "") || err == nil && m != tt.want {
			t.Errorf("%v: got %q (%v), want %q", tt.args, m, err, tt.want)
		}
	}
}
