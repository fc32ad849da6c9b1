package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// envPlays selects the fault of the processes that a test starts; empty = none.
const (
	envPlays      = "SKYSERVE_TEST_PLAYS"
	playsBroken   = "broken"   // exits with a message before it holds its object
	playsStubborn = "stubborn" // ignores SIGTERM
)

// TestMain runs this test binary as an object if a provider started it.
func TestMain(m *testing.M) {
	path := os.Getenv(EnvObject)
	if path == "" {
		// With the race detector, processes sleep for a second when they end: longer than goleak waits for the
		// goroutines that wait for them.
		os.Setenv("GORACE", "atexit_sleep_ms=0")
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch os.Getenv(envPlays) {
	case playsBroken:
		fmt.Fprintln(os.Stderr, "loading weights: no such file")
		os.Exit(1)
	case playsStubborn:
		ctx = context.WithoutCancel(ctx)
	}
	object, err := HoldObject(path)
	if err != nil {
		os.Exit(1)
	}
	defer object.Release()
	<-ctx.Done()
}

// A repeated `up` after an interrupted one finds processes that are still starting: each runs once, and no
// launch fails.
func TestConcurrentLaunchesStartOneProcess(t *testing.T) {
	testkit.Slow(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := NewProvider(newService(t, "chat"), exe, "build", 5*time.Second).WithSpec(twoRegionsOf(t))
	w := machine("us-0", provision.KindReplica)
	var starts sync.WaitGroup
	for range 3 {
		starts.Go(func() {
			if _, err := p.Launch(context.Background(), w); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	have, err := p.List(context.Background(), "chat")
	if err != nil || len(have) != 1 {
		t.Fatalf("got %+v (%v)", have, err)
	}
	if err := p.Terminate(context.Background(), have[0]); err != nil {
		t.Error(err)
	}
}

// A process that ignores SIGTERM is killed after the grace period.
func TestTerminateKillsAfterGrace(t *testing.T) {
	t.Setenv(envPlays, playsStubborn)
	p, svc := provider(t)
	p.grace = 50 * time.Millisecond
	o := launch(t, p, machine("us-0", provision.KindReplica))
	if err := p.Terminate(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if have, err := svc.Objects(); len(have) > 0 || err != nil {
		t.Errorf("remaining: %+v, %v", have, err)
	}
}

// An object whose process is unknown cannot be terminated, and stays in the list.
func TestUnstoppableObjectStaysListed(t *testing.T) {
	testkit.Slow(t)
	p, svc := provider(t)
	if err := os.MkdirAll(svc.objectDir(), dirMode); err != nil {
		t.Fatal(err)
	}
	held, err := lockFile(svc.objectFile("us-0"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := p.Terminate(t.Context(), provision.Object{ID: "us-0"}); err == nil || !strings.Contains(err.Error(), "finding the process of us-0") {
		t.Errorf("got %v", err)
	}
	if o := only(t, svc); o.ID != "us-0" || o.TerminatedReason != "" || o.Labels["problem"] == "" {
		t.Errorf("got %+v", o)
	}
}

// A process that exits before it holds its object is an error with its log.
func TestLaunchReportsImmediateExit(t *testing.T) {
	t.Setenv(envPlays, playsBroken)
	p, svc := provider(t)
	_, err := p.Launch(t.Context(), machine("us-0", provision.KindReplica))
	var start *provision.StartError
	if !errors.As(err, &start) || start.ID != "us-0" || start.File != svc.LogFile("us-0") || !slices.Equal(start.Log, []string{"loading weights: no such file"}) {
		t.Errorf("got %v, want a StartError with the last lines", err)
	}
}

// On an overloaded machine a process needs long until it runs. Launch waits for it while it lives, and ends at once when it
// has exited.
func TestLaunchWaitsForSlowProcess(t *testing.T) {
	svc := newService(t, "chat")
	p := NewProvider(svc, "unused", "build", 0)
	w := machine("us-0", provision.KindReplica)
	for _, tt := range []struct {
		name           string
		held, exited   time.Duration // 0 = never
		ends           time.Duration
		want           string
		isProcessError bool
	}{
		{name: "slow", held: 90 * time.Second, ends: 90 * time.Second},
		{name: "exits", exited: 30 * time.Second, ends: 30 * time.Second, want: "exited immediately with status 0", isProcessError: true},
		{name: "hangs", ends: startTimeout, want: "did not write its object file within 2m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exited, done := make(chan error, 1), make(chan error, 1)
				began := time.Now()
				go func() {
					_, err := p.waitHeldBy(t.Context(), w, os.Getpid(), exited, 0)
					done <- err
				}()
				if tt.held > 0 {
					time.Sleep(tt.held)
					defer holdObject(t, svc, provision.Object{ID: w.ID, SpecHash: w.SpecHash}, func() {})()
				}
				if tt.exited > 0 {
					time.AfterFunc(tt.exited, func() { exited <- nil })
				}
				err := <-done
				if got := time.Since(began); got < tt.ends || got > tt.ends+time.Second {
					t.Errorf("ended after %v, want %v", got, tt.ends)
				}
				var process *provision.StartError
				if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || errors.As(err, &process) != tt.isProcessError {
					t.Errorf("got %v, want %q", err, tt.want)
				}
			})
		})
	}
}

// Ports of running objects do not change, also if nothing is launched.
func TestRunningServiceKeepsPorts(t *testing.T) {
	p, _ := provider(t)
	o := launch(t, p, machine("us-0", provision.KindReplica))
	moved := twoRegionsOf(t)
	moved.LocalHosts.Port += 10
	check := func() error { return NewProvider(p.svc, p.exe, p.build, 0).WithSpec(moved).CheckPorts(nil) }
	var bad *provision.SpecError
	if err := check(); !errors.As(err, &bad) || !strings.Contains(err.Error(), "local.port: chat is running on ports from "+strconv.Itoa(firstPort)) {
		t.Errorf("while it runs: got %v", err)
	}
	if err := p.Terminate(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Errorf("once it does not: got %v", err)
	}
}

// A process of an interrupted `up` may become the object, and use its ports, while the next `up` is about to
// start it.
func TestLaunchFindsLateProcess(t *testing.T) {
	p, svc := provider(t)
	w := machine("us-0", provision.KindReplica)
	if err := os.MkdirAll(svc.objectDir(), dirMode); err != nil {
		t.Fatal(err)
	}
	booting, err := lockFile(svc.configFile(machinesLock)) // Launch waits for this lock
	if err != nil {
		t.Fatal(err)
	}
	defer booting.Close()
	type answer struct {
		o   provision.Object
		err error
	}
	launched := make(chan answer, 1)
	go func() {
		o, err := p.Launch(context.Background(), w)
		launched <- answer{o, err}
	}()
	for starting := false; !starting; { // until Launch holds its lock and reads the object
		f, err := os.Open(strings.TrimSuffix(svc.objectFile("us-0"), ".json") + ".lock")
		starting = err == nil && isLocked(f)
		f.Close()
	}
	release := holdObject(t, svc, provision.Object{ID: "us-0", Handle: "local-late", SpecHash: w.SpecHash}, nil)
	defer release()
	slots, err := p.portSlots(w)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", slots.endpoints("us-0", w.Kind).Listen.Agent)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := p.CheckPorts(provision.Changes{{Action: provision.ActionLaunch, Desired: w}}); err != nil {
		t.Errorf("its own ports are taken: %v", err)
	}
	booting.Close()
	if got := <-launched; got.err != nil || got.o.Handle != "local-late" {
		t.Errorf("got %+v, %v", got.o, got.err)
	}
	ln.Close()
	release()
}

// machine returns a desired machine of chat.
func machine(id string, kind provision.ObjectKind) provision.Desired {
	document := "#cloud-config\nwrite_files:\n  - path: /etc/skyserve/node.json\n    content: |\n      {\"service\": \"chat\", \"id\": \"" + id + "\", \"listen\": \":8200\"}\n"
	return provision.Desired{ID: id, Kind: kind, Service: "chat", Owner: "me", Region: "local/us", SpecHash: "s", Machine: &provision.MachineConfig{Role: provision.Role(kind), UserData: document}}
}

func TestProviderConformance(t *testing.T) {
	testkit.Slow(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		svc := newService(t, "chat")
		open := func(*testing.T) provision.Provider {
			return NewProvider(svc, exe, "build", 5*time.Second).WithSpec(twoRegionsOf(t))
		}
		s := conformance.Subject{Provider: open(t), Reopen: open, Service: "chat"}
		for _, id := range []string{"us-0", "us-1"} {
			s.Desired = append(s.Desired, machine(id, provision.KindReplica))
		}
		t.Cleanup(func() {
			have, err := s.Provider.List(context.Background(), "chat")
			for _, o := range have {
				if err := s.Provider.Terminate(context.Background(), o); err != nil {
					t.Error(err)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
		return s
	})
}
