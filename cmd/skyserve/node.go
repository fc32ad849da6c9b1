package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"skyserve/internal/agent"
)

func newNodeCmd() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the agent of a machine in a cloud",
		Long: `Run the agent of a machine of a service. It is started by the machine's
cloud-init: 'skyserve up' makes the file, and there is no reason to run it by hand.

The agent makes a key, tells its fingerprint by the channel of its cloud, and waits
to be enrolled: an operator whose certificate is by the authority that the file
names hands over a certificate for that key, configuration and secrets, once. From
then on the agent keeps the machine's units running and reports how they do.`,
		Example: `  skyserve node --config /etc/skyserve/node.json`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runNode(cmd, config) },
	}
	cmd.Flags().StringVar(&config, "config", "/etc/skyserve/node.json", "`FILE` that says who the machine is")
	return cmd
}

func runNode(cmd *cobra.Command, file string) error {
	c, err := agent.ReadConfig(file)
	if err != nil {
		return usage(err, "")
	}
	o, err := c.Options()
	if err != nil {
		return usage(err, "")
	}
	if o.Logger, err = newLog(cmd.ErrOrStderr(), slog.LevelInfo, "text"); err != nil {
		return err
	}
	o.Listening = func(addr string) {
		fmt.Fprintf(cmd.ErrOrStderr(), "node %s listens on %s\n", c.ID, addr)
	}
	o.Cloud = handOf(c.Service, c.Owner)
	if units, ok := o.Runner.(*agent.Exec); ok && c.Runner == agent.RunnerInside {
		units.Inside = runInside
		if err := os.Chdir(c.Dir); err != nil { // units name files by their paths there
			return failed(fmt.Errorf("starting the agent: %w", err), "")
		}
	}
	agent, err := agent.New(o)
	if err != nil {
		return failed(err, "")
	}
	err = agent.Run(cmd.Context())
	if children, ok := o.Runner.(io.Closer); ok {
		err = errors.Join(err, children.Close())
	}
	return err
}

// reloadsKey is the key by which a verb's context has who asks it to read its files again, where
// that is not a signal to the process.
type reloadsKey struct{}

// runInside runs another verb of this program inside of the process until ctx ends.
func runInside(ctx context.Context, args []string, log io.Writer, reload <-chan os.Signal) error {
	ctx = context.WithValue(ctx, reloadsKey{}, reload)
	if code := execute(ctx, args, log, log); code != exitOK && ctx.Err() == nil {
		return fmt.Errorf("skyserve %s ended with the exit code %d", args[0], code)
	}
	return nil
}

// reloadsOf are the requests to read files again: SIGHUP, or what runInside was told.
func reloadsOf(ctx context.Context) (reloads <-chan os.Signal, stop func()) {
	if inside, ok := ctx.Value(reloadsKey{}).(<-chan os.Signal); ok {
		return inside, func() {}
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups, func() { signal.Stop(hangups) }
}
