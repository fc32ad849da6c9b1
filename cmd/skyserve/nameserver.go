package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"skyserve/provision/dns"
	"skyserve/provision/local"
)

func newNameServerCmd() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:    "nameserver --config FILE",
		Short:  "Run the name server of a service",
		Hidden: true, // started by 'up' only
		Long: `Run the name server of a service whose file has dns.provider: embedded. It resolves
the service's public name to the balancers that are nearest to the client, and omits
those that do not respond. 'skyserve up' runs one in the background and writes its
configuration.`,
		Example: `  skyserve nameserver --config ~/.local/state/skyserve/services/chat/nameserver.yaml
  dig @127.0.0.1 -p 5300 chat.example.com`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usage(errors.New("--config is required"), "'skyserve up SERVICE.yaml' writes the file and runs the name server")
			}
			c, err := local.ReadNameServer(config)
			if err != nil {
				return usage(err, "")
			}
			server, err := dns.NewServer(c, nil, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if err != nil {
				return usage(err, "")
			}
			return server.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE`, YAML or JSON")
	return cmd
}
