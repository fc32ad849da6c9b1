package main

import (
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"skyserve/internal/controller"
	"skyserve/internal/controller/rollout"
	"skyserve/internal/service"
	"skyserve/provision/local"
)

func newControllerCmd() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "controller --config FILE",
		Short: "Run the controller of a service alone",
		Long: `Run the controller of a service: it decides which balancer serves which replica,
moves the replicas of a dead balancer to the nearest live one and back, plans
every autoscale.every, lets autoscale.strategy change the number of replicas
between plans, and serves the embedded store. 'skyserve up' runs one in the
background and writes its configuration; traffic goes on while it is away. Only
one that 'skyserve up' started can change replicas. Of a service in clouds one runs
on the machine of the first balancer, and replaces replicas whose machines are gone.

SIGHUP, and POST /reload on its address, read the configuration file again.`,
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
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			object := objectOf(cmd.Context())
			hangups := make(chan os.Signal, 1)
			signal.Notify(hangups, syscall.SIGHUP)
			defer signal.Stop(hangups)
			options := append(keeping(config, log), rereadController(config, object, log), controller.Hangups(hangups))
			if svc, ok := local.ServiceOf(config); ok && object != nil {
				options = append(options, controller.ActedOn(rollout.NewActuator(svc)))
			}
			return controller.Run(cmd.Context(), c, log, options...)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE`, YAML or JSON")
	return cmd
}

// rereadController reads the file again when that is asked for, and writes down in
// the object that the process is, if any, which configuration holds.
func rereadController(file string, object *local.Holding, log *slog.Logger) controller.Option {
	read := func() (service.ControllerConfig, error) { return controller.ReadConfig(file) }
	return controller.Reread(read, func(revision string) {
		if object == nil || revision == "" {
			return
		}
		if err := object.SetSpec(revision); err != nil {
			log.Error("writing down the configuration that holds", "err", err)
		}
	})
}
