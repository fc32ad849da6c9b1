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
		Short:  "Run the name server of a service alone",
		Hidden: true, // nobody needs it by hand
		Long: `Run the name server of a service whose file has dns.provider: embedded: it
answers the service's public name with the balancers that are best for whoever
asks, and leaves out those that do not answer. 'skyserve up' runs one in the
background and writes its configuration.`,
		Example: `  skyserve nameserver --config ~/.local/state/skyserve/services/chat/nameserver.yaml
  dig @127.0.0.1 -p 5300 chat.example.com`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usage(errors.New("--config: missing"), "'skyserve up SERVICE.yaml' writes one and runs the name server with it")
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
