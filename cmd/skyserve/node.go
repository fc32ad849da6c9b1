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
		Short: "Run the agent of a machine",
		Long: `Run the agent of a service's machine. The machine's cloud-init starts it; 'skyserve up'
writes its configuration. There is no need to run it by hand.

The agent generates a key, writes the key's fingerprint to the VM's console or metadata, and
waits to be enrolled. --config contains the service's certificate authority: only an
operator or a controller with a certificate of this authority may enrol the machine, and
only once. They send a certificate for the key, and the configuration and secrets of the
machine's units, which are the processes that it runs. After that the agent keeps these
units running and reports their status.`,
		Example: `  skyserve node --config /etc/skyserve/node.json`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runNode(cmd, config) },
	}
	cmd.Flags().StringVar(&config, "config", "/etc/skyserve/node.json", "configuration `FILE` of the agent")
	return cmd
}

func runNode(cmd *cobra.Command, file string) error {
	c, err := agent.ReadConfig(file)
	if err != nil {
		return usage(err, "'skyserve up' writes /etc/skyserve/node.json on the VMs of a service; --config selects another file")
	}
	o, err := c.Options()
	if err != nil {
		return usage(err, "")
	}
	if o.Logger, err = newLog(cmd.ErrOrStderr(), slog.LevelInfo, "text"); err != nil {
		return err
	}
	o.OnListen = func(addr string) {
		fmt.Fprintf(cmd.ErrOrStderr(), "agent of %s listens on %s\n", c.ID, addr)
	}
	o.CloudHandler = cloudHandler(c.Service, c.Owner)
	if units, ok := o.Runner.(*agent.Exec); ok && c.Runner == agent.RunnerInProcess {
		units.RunInProcess = runInProcess
		if err := os.Chdir(c.Dir); err != nil { // units use paths relative to this directory
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

// reloadsKey is the context key of the channel that requests a reload, for commands that run inside
// another process and receive no signal.
type reloadsKey struct{}

// runInProcess runs another command of this program inside the process until ctx ends.
func runInProcess(ctx context.Context, args []string, log io.Writer, reload <-chan os.Signal) error {
	ctx = context.WithValue(ctx, reloadsKey{}, reload)
	if code := execute(ctx, args, log, log); code != exitOK && ctx.Err() == nil {
		return fmt.Errorf("skyserve %s ended with exit code %d", args[0], code)
	}
	return nil
}

// reloadsOf returns the channel of reload requests: the one given to runInProcess, or SIGHUP.
func reloadsOf(ctx context.Context) (reloads <-chan os.Signal, stop func()) {
	if inside, ok := ctx.Value(reloadsKey{}).(<-chan os.Signal); ok {
		return inside, func() {}
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups, func() { signal.Stop(hangups) }
}
