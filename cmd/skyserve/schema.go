package main

import (
	"github.com/spf13/cobra"

	"skyserve/internal/service"
)

func newSchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of a service file",
		Long: `Print the JSON schema of service.yaml. Editors with the YAML language server use it for
completion and checks if the file starts with this line:

  # yaml-language-server: $schema=service.schema.json`,
		Example: "  skyserve schema > service.schema.json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := service.Schema()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
