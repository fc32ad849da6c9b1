package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"skyserve/internal/controller"
)

func newControllerCmd() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "controller --config FILE",
		Short: "Run the controller of a service alone",
		Long: `Run the controller of a service: it decides which balancer serves which replica,
moves the replicas of a dead balancer to the nearest live one and back, and
serves the embedded store. 'skyserve up' runs one in the background and writes
its configuration; traffic goes on while it is away.`,
		Example: `  skyserve controller --config ~/.local/state/skyserve/services/chat/controller.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usage(errors.New("--config: missing"), "'skyserve up SERVICE.yaml' writes one and runs the controller with it")
			}
			c, err := controller.ReadConfig(config)
			if err != nil {
				return usage(err, "")
			}
			return controller.Run(cmd.Context(), c, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE`, YAML or JSON")
	return cmd
}
