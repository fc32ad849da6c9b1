package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
)

// A unit of this binary runs inside the agent's process: it is reloaded, restarted when it fails, and
// stopped. Other programs are child processes.
func TestOwnProgramRunsInsideAgent(t *testing.T) {
	started, reloaded, ended := make(chan []string, 2), make(chan struct{}), make(chan struct{}, 2)
	failFirst := make(chan struct{}, 1)
	failFirst <- struct{}{}
	e := &Exec{Dir: t.TempDir(), RunInProcess: func(ctx context.Context, args []string, log io.Writer, reload <-chan os.Signal) error {
		defer func() { ended <- struct{}{} }()
		fmt.Fprintln(log, "running")
		started <- args
		select {
		case <-failFirst:
			return errors.New("first run fails")
		default:
		}
		for {
			select {
			case <-reload:
				reloaded <- struct{}{}
			case <-ctx.Done():
				return nil
			}
		}
	}}
	u := Unit{Name: "balancer", Args: []string{"skyserve", "lb", "--config", "c"}}
	if _, err := e.Start(t.Context(), u, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first run fails
		if args := <-started; !slices.Equal(args, []string{"lb", "--config", "c"}) {
			t.Fatalf("run with %q", args)
		}
	}
	<-ended
	if again, err := e.Start(t.Context(), u, nil); again || err != nil {
		t.Errorf("the same unit is started twice: %t, %v", again, err)
	}
	if err := e.Reload(t.Context(), "balancer"); err != nil {
		t.Fatal(err)
	}
	<-reloaded
	if state, err := e.Inspect(t.Context(), u, 1); !state.Running || err != nil || !slices.Equal(state.Lines, []string{"running"}) {
		t.Errorf("got %+v, %v", state, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if _, err := e.Start(t.Context(), Unit{Name: "other", Args: []string{"no-such-program"}}, nil); err == nil {
		t.Error("no error for a missing program")
	}
}
