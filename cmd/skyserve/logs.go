package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"skyserve/provision/local"
)

// logsOptions are the flags of `skyserve logs`.
type logsOptions struct {
	name   string
	part   string
	follow bool
	tail   int
	clouds cloudFlags
}

func newLogsCmd() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs NAME [lb/REGION|REPLICA|controller]",
		Short: "Show what the processes of a service say",
		Long: `Show the last lines that the processes of a service wrote: all of them, the
balancers of one region (lb/us), one replica (us-0) or the controller. Machines in
clouds are asked for theirs, with -f every second.

Lines are printed without colours. Control characters and characters that turn or hide
text are written as escapes (\u202e), into a pipe too.`,
		Example: `  skyserve logs chat
  skyserve logs chat lb/us -f
  skyserve logs chat us-0 --tail 50`,
		Args: argsBetween(1, 2, "NAME [lb/REGION|REPLICA|controller]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.name = args[0]
			if len(args) == 2 {
				o.part = args[1]
			}
			return runLogs(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on, until ctrl-C")
	cmd.Flags().IntVar(&o.tail, "tail", 20, "how many last lines of each process")
	o.clouds.add(cmd.Flags())
	return cmd
}

func runLogs(ctx context.Context, o *logsOptions, out, talk io.Writer) error {
	if o.tail < 0 {
		return usage(fmt.Errorf("--tail: must be at least 0, got %d", o.tail), "")
	}
	svc, err := findService(o.name)
	if err != nil {
		return err
	}
	spec, err := cloudSpec("", svc)
	if err != nil {
		return err
	}
	if spec != nil {
		return runCloudLogs(ctx, o, out, talk, svc, spec)
	}
	return runLocalLogs(ctx, o, out, svc)
}

// runLocalLogs shows what the processes of a service wrote that are on this machine.
func runLocalLogs(ctx context.Context, o *logsOptions, out io.Writer, svc local.Service) error {
	ids, err := logIDs(svc, o.part)
	if err != nil {
		return err
	}
	prefix := func(id string) string {
		if len(ids) == 1 {
			return ""
		}
		return id + ": "
	}
	for _, id := range ids {
		lines, err := svc.Tail(id, o.tail)
		if err != nil {
			return err
		}
		for _, line := range lines {
			fmt.Fprintln(out, prefix(id)+line)
		}
	}
	if !o.follow {
		return nil
	}
	return followAll(ctx, svc, ids, func(id, line string) { fmt.Fprintln(out, prefix(id)+line) })
}

// logIDs are the objects that a part names; all that ever wrote when it is empty.
func logIDs(svc local.Service, part string) ([]string, error) {
	all, err := svc.Logs()
	if err != nil {
		return nil, err
	}
	if part == "" {
		return all, nil
	}
	prefix := "lb-" + strings.TrimPrefix(part, "lb/") + "-"
	ids := slices.DeleteFunc(slices.Clone(all), func(id string) bool {
		return id != part && (!strings.HasPrefix(part, "lb/") || !strings.HasPrefix(id, prefix))
	})
	if len(ids) == 0 {
		return nil, failed(fmt.Errorf("%s of %s has no log", part, svc.Name()), "there are logs of "+strings.Join(all, ", "))
	}
	return ids, nil
}

// followAll passes the lines of several logs on, one at a time, until ctx ends.
func followAll(ctx context.Context, svc local.Service, ids []string, line func(id, line string)) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			_ = svc.Follow(ctx, id, func(text string) { // it ends with ctx alone
				mu.Lock()
				defer mu.Unlock()
				line(id, text)
			})
		})
	}
	wg.Wait()
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return nil // ctrl-C is how one leaves
	}
	return context.Cause(ctx)
}
