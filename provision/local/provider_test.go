package local

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/provision"
	"skyserve/provision/providertest"
)

// TestMain makes this test binary be an object when it is started as one.
func TestMain(m *testing.M) {
	path := os.Getenv(EnvObject)
	if path == "" {
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
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := NewProvider(newService(t, "chat"), exe, "build", 5*time.Second)
	w := provision.Want{ID: "us-0", Kind: provision.KindReplica, Service: "chat", Region: "local/us", Spec: "s", Address: "http://127.0.0.1:1", Recipe: []byte("{}")}
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

func TestTheLocalProviderKeepsTheContract(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		svc := newService(t, "chat")
		open := func(*testing.T) provision.Provider { return NewProvider(svc, exe, "build", 5*time.Second) }
		s := providertest.Subject{Provider: open(t), Reopen: open, Service: "chat"}
		for _, id := range []string{"us-0", "us-1"} {
			text, err := json.Marshal(recipe{Args: []string{id}})
			if err != nil {
				t.Fatal(err)
			}
			s.Wants = append(s.Wants, provision.Want{
				ID: id, Kind: provision.KindReplica, Service: "chat", Region: "local/us", Spec: "s", Address: "http://127.0.0.1:1", Recipe: text,
			})
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
