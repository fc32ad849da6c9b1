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

// A unit of this program runs inside of the agent's process: it is told of other files, started
// again when it fails, and ended with Stop. Other programs are children.
func TestOwnProgramRunsInsideAgent(t *testing.T) {
	started, reloaded, ended := make(chan []string, 2), make(chan struct{}), make(chan struct{}, 2)
	failFirst := make(chan struct{}, 1)
	failFirst <- struct{}{}
	e := &Exec{Dir: t.TempDir(), Inside: func(ctx context.Context, args []string, log io.Writer, reload <-chan os.Signal) error {
		defer func() { ended <- struct{}{} }()
		fmt.Fprintln(log, "it runs")
		started <- args
		select {
		case <-failFirst:
			return errors.New("it fails at first")
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
	for range 2 { // it failed once
		if args := <-started; !slices.Equal(args, []string{"lb", "--config", "c"}) {
			t.Fatalf("it was run with %q", args)
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
	if seen, err := e.Inspect(t.Context(), u, 1); !seen.Running || err != nil || !slices.Equal(seen.Lines, []string{"it runs"}) {
		t.Errorf("got %+v, %v", seen, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if _, err := e.Start(t.Context(), Unit{Name: "other", Args: []string{"no-such-program"}}, nil); err == nil {
		t.Error("a program that there is not was started inside")
	}
}
