package machines

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
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

// A machine with the name of an earlier one boots once that one has ended, which takes its time and still writes to its
// disk: the two have the same directory.
func TestMachineWithSameNameBootsAfterEarlierOne(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "skyserve")
	const slow = `#!/bin/sh
trap 'i=0; while [ $i -lt 500 ]; do : >"${3%/*}/$((i % 50))"; rm -f "${3%/*}/$(((i + 25) % 50))"; i=$((i + 1)); done; exit' TERM
: >"${3%/*}/started"
while :; do sleep 0.01; done
`
	if err := os.WriteFile(program, []byte(slow), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	failed := make(chan error, 2)
	c := New(Options{
		Dir: dir, Program: program, Environment: os.Environ(), Regions: []string{"us-east-1"}, Project: "p", Faults: &testcloud.Faults{},
		OnEnded: func(_ string, err error, _ string) { failed <- err },
	})
	started := func() bool { _, err := os.Stat(filepath.Join(dir, "i-1", "started")); return err == nil }
	off := c.Google.BootMachine(booted(1))
	testkit.Eventually(t, "the first machine runs", started)
	if err := os.Remove(filepath.Join(dir, "i-1", "started")); err != nil {
		t.Fatal(err)
	}
	off()
	c.Google.BootMachine(booted(1))
	if err := <-failed; err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "the second machine runs", started)
	if files, err := os.ReadDir(filepath.Join(dir, "i-1")); err != nil || len(files) > 3 {
		t.Errorf("its disk has %d files (%v)", len(files), err)
	}
	c.Close()
	if err := <-failed; err != nil {
		t.Error(err)
	}
}
