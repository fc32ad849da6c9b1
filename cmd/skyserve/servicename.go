package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
)

// One way to name a service: --service NAME, which every command that acts on a service accepts. Commands whose only
// object is the service accept NAME as their argument too. Without either, it is the service of the configuration
// file, else the only one on this machine.

// registerService registers --service.
func registerService(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "service", "", "`NAME` of the service (default: the one in config.yaml, else the only one)")
}

// setService sets the name of a service to the argument NAME of a command, if it is given. form is that of the argument.
func setService(name *string, args []string, form string) error {
	switch {
	case len(args) == 0:
		return nil
	case *name != "" && *name != args[0]:
		return usage(fmt.Errorf("--service %s: cannot be combined with %s %s", *name, form, args[0]), "both name the service: pass one of them")
	}
	*name = args[0]
	return nil
}

// oneArgument accepts one argument, and two for the form before --service, which has NAME too.
func oneArgument(form string) cobra.PositionalArgs {
	one := argsBetween(1, 1, form)
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 {
			return nil
		}
		return one(cmd, args)
	}
}

// warnServiceArgument warns that an argument names the service in a deprecated form.
func warnServiceArgument(errOut io.Writer, cmd *cobra.Command, name string) {
	printMessage(errOut, labelWarning, "the argument NAME of '%s' is deprecated: pass --service %s", cmd.CommandPath(), printable.Line(name))
}
