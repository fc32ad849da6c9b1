package machines

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"testing"

	"skyserve/internal/testcloud"
)

// newClouds returns clouds whose machines run a program without signal handlers, and a counter of ended
// machines.
func newClouds(t *testing.T) (c *Clouds, ended *atomic.Int32) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "skyserve")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	ended = new(atomic.Int32)
	c = New(Options{
		Dir: dir, Program: program, Environment: os.Environ(), Regions: []string{"us-east-1"}, Project: "p", Faults: &testcloud.Faults{},
		OnEnded: func(string, error, string) { ended.Add(1) },
	})
	return c, ended
}

func booted(n int) testcloud.BootingMachine {
	return testcloud.BootingMachine{ID: fmt.Sprintf("i-%d", n), Private: "127.0.0.1", UserData: "#cloud-config"}
}

// Background processes of shells ignore interrupts. Machines must end nevertheless, even before they have
// installed signal handlers.
func TestMachinesEndWhereInterruptsAreIgnored(t *testing.T) {
	signal.Ignore(os.Interrupt)
	defer signal.Reset(os.Interrupt)
	c, ended := newClouds(t)
	for n := range 3 {
		c.AWS.BootMachine(booted(n))
	}
	if c.RunningAgents() != 3 {
		t.Fatalf("got %d running machines", c.RunningAgents())
	}
	c.Close()
	if c.RunningAgents() != 0 || ended.Load() != 3 {
		t.Errorf("got %d running and %d ended machines", c.RunningAgents(), ended.Load())
	}
}

// A call may be executed after its caller has exited. A machine that it boots would never be ended.
func TestNoMachineBootsAfterClose(t *testing.T) {
	c, _ := newClouds(t)
	c.Close()
	c.AWS.BootMachine(booted(1))()
	if c.RunningAgents() != 0 {
		t.Errorf("got %d running machines", c.RunningAgents())
	}
}
