package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"skyserve/internal/node"
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
	c, err := node.ReadConfig(file)
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
	agent, err := node.New(o)
	if err != nil {
		return failed(err, "")
	}
	err = agent.Run(cmd.Context())
	if children, ok := o.Runner.(io.Closer); ok {
		err = errors.Join(err, children.Close())
	}
	return err
}
