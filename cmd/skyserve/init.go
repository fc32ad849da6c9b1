package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/skypilot"
	"skyserve/templates"
)

type initOptions struct {
	cloud string
	from  string
	name  string
}

func newInitCmd() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [NAME]",
		Short: "Print a starter service file",
		Long: `Print a commented service.yaml to start from. NAME is the name of the service.

--from converts a file of SkyPilot's SkyServe: a task with a section 'service'. Comments
at the start of the result list the settings that skyserve does not have. Values of secrets
are not copied.`,
		Example: `  skyserve init > service.yaml
  skyserve init --cloud aws my-chat > service.yaml
  skyserve init --from sky.yaml > service.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(fmt.Errorf("accepts at most 1 argument, received %d", len(args)), "for example: skyserve init my-chat > service.yaml")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkExclusive(cmd, "from", "cloud"); err != nil {
				return err
			}
			o.name = strings.Join(args, "")
			return runInit(cmd, o)
		},
	}
	cmd.Flags().StringVar(&o.from, "from", "", "convert this `FILE` of SkyPilot's SkyServe; - = standard input")
	cmd.Flags().StringVar(&o.cloud, "cloud", templates.Clouds()[0], "where the service runs: "+strings.Join(templates.Clouds(), ", ")+" (local = simulated engines on this machine, static = your own machines)")
	return cmd
}

func runInit(cmd *cobra.Command, o initOptions) error {
	if o.from != "" {
		return convertService(cmd, o)
	}
	text, err := templates.Starter(o.cloud, o.name)
	if err != nil {
		return usage(fmt.Errorf("--cloud: %w", err), "")
	}
	spec, err := service.Parse("service.yaml", text)
	if err != nil {
		return usage(initError(o.name, err), "for example: skyserve init my-chat")
	}
	if o.name != "" && spec.Name != o.name {
		return usage(fmt.Errorf("naming the service %q: YAML reads it as %q", o.name, spec.Name), "for example: skyserve init my-chat")
	}
	if slices.Contains(templates.Clouds(), o.name) && !cmd.Flags().Changed("cloud") {
		printMessage(cmd.ErrOrStderr(), labelHint, "the service is named %s and runs in local regions; for a file with %s regions: skyserve init --cloud %s", o.name, o.name, o.name)
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}

// convertService prints the converted file of another tool.
func convertService(cmd *cobra.Command, o initOptions) error {
	file := o.from
	data, err := readValidated(cmd.InOrStdin(), &file)
	if err != nil {
		return usage(fmt.Errorf("--from: %s %w", file, err), "")
	}
	text, checks, err := skypilot.Convert(file, data, o.name)
	if err != nil {
		return usage(err, "'skyserve init' prints a starter file")
	}
	if _, err := cmd.OutOrStdout().Write(text); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "converted %s: check the %s in the comments at the top\n", file, printable.Count(checks, "point"))
	return nil
}

// initError reduces a validation error to the problem with the name, since the starter file is
// otherwise valid.
func initError(name string, err error) error {
	var all service.Errors
	if errors.As(err, &all) && len(all) > 0 {
		return fmt.Errorf("naming the service %q: %s", name, all[0].Problem)
	}
	return err
}
