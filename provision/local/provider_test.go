package local

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// TestMain makes this test binary be an object when it is started as one.
func TestMain(m *testing.M) {
	path := os.Getenv(EnvObject)
	if path == "" {
		// Built with the race detector, processes sleep a second as they end: longer than goleak
		// waits for those who reap them.
		os.Setenv("GORACE", "atexit_sleep_ms=0")
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	object, err := Hold(path)
	if err != nil {
		os.Exit(1)
	}
	defer object.Release()
	<-ctx.Done()
}

// Whoever cuts an 'up' short and runs it again starts processes that start already: each runs
// once, and nobody fails.
func TestStartsAtTheSameTimeAreOne(t *testing.T) {
	testkit.Slow(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := NewProvider(newService(t, "chat"), exe, "build", 5*time.Second).For(twoRegionsOf(t))
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

// machine is a machine of chat that is wanted.
func machine(id string, kind provision.Kind) provision.Want {
	document := "#cloud-config\nwrite_files:\n  - path: /etc/skyserve/node.json\n    content: |\n      {\"service\": \"chat\", \"id\": \"" + id + "\", \"listen\": \":8200\"}\n"
	return provision.Want{ID: id, Kind: kind, Service: "chat", Owner: "me", Region: "local/us", Spec: "s", Machine: &provision.Machine{Role: kind, UserData: document}}
}

func TestTheLocalProviderKeepsTheContract(t *testing.T) {
	testkit.Slow(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		svc := newService(t, "chat")
		open := func(*testing.T) provision.Provider {
			return NewProvider(svc, exe, "build", 5*time.Second).For(twoRegionsOf(t))
		}
		s := conformance.Subject{Provider: open(t), Reopen: open, Service: "chat"}
		for _, id := range []string{"us-0", "us-1"} {
			s.Wants = append(s.Wants, machine(id, provision.KindReplica))
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
