package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"skyserve/internal/agent"
	"skyserve/provision/local"
)

// logsOptions are the flags of `skyserve logs`.
type logsOptions struct {
	name   string
	part   string
	follow bool
	tail   int
	// since is the start of the period; empty = all.
	since  string
	clouds cloudFlags
}

func newLogsCmd() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs [NAME] [BALANCER|lb/REGION|REPLICA|controller]",
		Short: "Show logs of replicas and balancers",
		Long: `Show the last log lines of one balancer (lb-us-0), of the balancers of one region (lb/us), of
one replica (us-0), of the controller or, by default, of all processes except the controller.
NAME is optional if only one service exists. Logs of cloud VMs are fetched from their agents;
-f polls them every second.

--since prints the retained lines since that time (at most 10,000); --tail limits them if it
is set. A line without a time belongs to the line before it. Times without a zone are UTC in
logs of cloud VMs, and local on this machine.

Lines are printed without colours. Control characters and characters that reorder or hide
text are escaped (\u202e), also when the output is a pipe.`,
		Example: `  skyserve logs
  skyserve logs chat lb/us -f
  skyserve logs us-0 --since 10m
  skyserve logs us-0 --service chat
  skyserve logs chat us-0 --tail 50`,
		Args: argsBetween(0, 2, "[NAME] [BALANCER|lb/REGION|REPLICA|controller]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && o.name != "":
				o.part = args[0]
			case len(args) == 1:
				o.name = args[0]
				if _, err := findService(o.name); err != nil {
					_, err := findService("")
					if set, _, unset := defaultService(); err != nil && unset == nil && set != "" {
						return err
					}
					if err == nil { // the argument names a process of the only service
						o.name, o.part = "", args[0]
					}
				}
			case len(args) == 2:
				if err := setService(&o.name, args, "NAME"); err != nil {
					return err
				}
				o.part = args[1]
				if err := checkFirstArgument(&o); err != nil {
					return err
				}
			}
			if o.since != "" && !cmd.Flags().Changed("tail") {
				o.tail = agent.MaxLogLines
			}
			return runLogs(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	registerService(cmd, &o.name)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "print new lines as they are written, until Ctrl-C")
	cmd.Flags().IntVar(&o.tail, "tail", 20, "number of lines from the end of each log")
	cmd.Flags().StringVar(&o.since, "since", "", "start of the period: a duration such as 10m or 2d, or a time such as 2026-11-24T12:00:00Z (default: all)")
	o.clouds.registerFlags(cmd.Flags())
	return cmd
}

// checkFirstArgument returns an error if the first of two arguments names no service: it may be meant as a process.
func checkFirstArgument(o *logsOptions) error {
	var none *local.NoServiceError
	_, err := findService(o.name)
	if errors.As(err, &none) && len(none.Exist) > 0 && didYouMean(none.Name, none.Exist) == "" {
		return notFound(none, fmt.Sprintf("with two arguments, the first one is the service: skyserve logs %s %s", none.Exist[0], o.part))
	}
	return err
}

func runLogs(ctx context.Context, o *logsOptions, out, errOut io.Writer) error {
	if o.tail < 0 {
		return usage(fmt.Errorf("--tail: must be at least 0, got %d", o.tail), "")
	}
	svc, err := findService(o.name)
	if err != nil {
		return err
	}
	return showLogs(ctx, o, out, errOut, svc)
}
