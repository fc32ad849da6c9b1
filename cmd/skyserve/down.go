package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/rollout"
	"skyserve/provision"
	"skyserve/provision/local"
)

// downOptions are the flags of `skyserve down`.
type downOptions struct {
	name   string
	yes    bool
	purge  bool
	output string
	clouds cloudFlags
}

func newDownCmd() *cobra.Command {
	var o downOptions
	cmd := &cobra.Command{
		Use:   "down [NAME|SERVICE.yaml]",
		Short: "Take a service down and verify that it is gone",
		Long: `Stop every process of a service, verify that each is gone, and remove the
service's state and history from this machine. NAME may be left out while one
service exists. It works with whatever is left of a service, and running it
again is safe. What could not be removed is listed (exit 3).

The machines of static regions are not touched: they are only let go. Of regions in
clouds, the public name goes first, then machines, firewalls and identities, after it
was asked; each is looked for by its tags until it is gone.`,
		Example: `  skyserve down chat
  skyserve down service.yaml`,
		Args: argsBetween(0, 1, "[NAME|SERVICE.yaml]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.name = args[0]
			}
			return runDown(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.yes, "yes", false, "do not ask before deleting what is billed (local and static regions never ask)")
	flags.BoolVar(&o.purge, "purge", false, "remove the service's state even when a process could not be stopped")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
	o.clouds.add(flags)
	return cmd
}

func runDown(ctx context.Context, o *downOptions, in io.Reader, out, talk io.Writer) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	name, err := rollout.NameIn(o.name)
	if err != nil {
		return usage(err, "skyserve down NAME takes the name instead of the file")
	}
	svc, err := findService(name)
	if err != nil {
		return err
	}
	unlock, err := svc.LockSoon(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	spec, err := cloudSpec(o.name, svc)
	if err != nil {
		return err
	}
	if spec != nil {
		return runCloudDown(ctx, o, in, out, talk, svc, spec)
	}
	stopped := 0
	err = rollout.Down(ctx, svc, local.DefaultGrace, o.purge, func(c provision.Change, p provision.Phase, _ error) {
		if p == provision.PhaseDone {
			stopped++
			fmt.Fprintf(talk, "stopped %s\n", c.ID())
		}
	})
	var left *provision.LeftoverError
	if err != nil && !errors.As(err, &left) {
		return err
	}
	if err := printDown(out, o.output, svc.Name(), "processes stopped", stopped, left); err != nil {
		return err
	}
	if left != nil {
		return &exitError{code: exitPartial, err: left, hint: "run it again, or stop what is left by hand"}
	}
	return nil
}

// printDown says how much was removed, in the words of done, and what is left.
func printDown(out io.Writer, output, name, done string, stopped int, left *provision.LeftoverError) error {
	leftovers := []string{}
	if left != nil {
		leftovers = left.Left
	}
	if output == "json" {
		return json.NewEncoder(out).Encode(map[string]any{"service": name, "stopped": stopped, "leftovers": leftovers})
	}
	if left == nil {
		_, err := fmt.Fprintf(out, "%s is down; %s: %d, left over: 0\n", name, done, stopped)
		return err
	}
	return nil
}
