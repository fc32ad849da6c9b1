package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/store"
)

func newControllerCmd() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "controller --config FILE",
		Short: "Run the controller of a service",
		Long: `Run the controller of a service. It assigns replicas to balancers, moves the replicas
of a dead balancer to the nearest live one until the balancer responds again, plans at the
interval autoscale.every, lets autoscale.strategy change the number of replicas between plans,
and serves the embedded store. 'skyserve up' starts the controller on the machine of a
balancer, and writes the service.yaml, certificates and secrets of the service beside the
configuration file. Without them the controller does not add, remove or replace replicas. A
service with three balancers or more has three controllers: one leads. Balancers keep serving
while no controller runs.

SIGHUP, or POST /reload on its address, reloads the configuration file.`,
		Example: `  skyserve controller --config controller.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usage(errors.New("--config is required"), "'skyserve up SERVICE.yaml' writes the file and runs the controller")
			}
			hangups, stop := reloadsOf(cmd.Context()) // before the file is read: no change of it is missed
			defer stop()
			c, err := controller.ReadConfig(config)
			if err != nil {
				return usage(err, "the file configures a controller and has other keys than a service.yaml, which 'skyserve up' deploys")
			}
			servesStore.Store(c.StoreURL == "")
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			read := func() (service.ControllerConfig, error) { return controller.ReadConfig(config) }
			bucket := func(ctx context.Context, url string) (store.CloudBucket, error) {
				return openBucket(ctx, c.Service, url)
			}
			options := append(reconcilerOptions(config, log), controller.WithBuckets(bucket), controller.WithReload(read), controller.WithVersion(ownVersion().Version), controller.WithReloadSignals(hangups))
			return controller.Run(cmd.Context(), c, log, options...)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE` of the controller (not a service.yaml), YAML or JSON")
	return cmd
}
