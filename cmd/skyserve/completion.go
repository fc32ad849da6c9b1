package main

import (
	"slices"

	"github.com/spf13/cobra"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/local"
)

// Completions read only this machine's state directory: the shell waits for them. Errors complete nothing.

// completeServices completes the name of a service as the first argument.
func completeServices(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return serviceNames(), cobra.ShellCompDirectiveNoFileComp
}

// serviceNames returns the names of the services on this machine.
func serviceNames() []string {
	home, err := local.OpenHome()
	if err != nil {
		return nil
	}
	names, err := home.Services()
	if err != nil {
		return nil
	}
	return names
}

// completeIDs completes ids of the replicas of a service that are not in args yet.
func completeIDs(name *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return slices.DeleteFunc(machineIDs(*name, provision.KindReplica), func(id string) bool { return slices.Contains(args, id) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// machineIDs returns the ids of a service's machines of a kind on this machine, sorted.
func machineIDs(name string, kind provision.ObjectKind) (ids []string) {
	svc, err := findService(name)
	if err != nil {
		return nil
	}
	objects, err := svc.Objects()
	if err != nil {
		return nil
	}
	for _, o := range objects {
		if o.Kind == kind {
			ids = append(ids, o.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// completeLogs completes a service, then what has a log. Where the service is known without an argument, the first
// argument may be what has a log.
func completeLogs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	named := cmd.Flags().Changed("service")
	var words []string
	switch {
	case len(args) > 1 || named && len(args) > 0:
		return nil, cobra.ShellCompDirectiveNoFileComp
	case len(args) == 0 && !named:
		words = serviceNames()
	case len(args) == 1 && serviceOf(cmd, args) == "":
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	name := serviceOf(cmd, args)
	spec := specOf(name)
	if spec == nil { // there are several services
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	words = append(words, provision.ControllerID)
	for _, r := range spec.Regions {
		words = append(words, "lb/"+r.Name.ShortName())
	}
	return append(words, machineIDs(name, provision.KindReplica)...), cobra.ShellCompDirectiveNoFileComp
}

// completeServiceOrFile completes the name of a service, or the path of a service file.
func completeServiceOrFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return serviceNames(), cobra.ShellCompDirectiveDefault
}

// specOf returns the service file of a service; nil if it cannot be read.
func specOf(name string) *service.Spec {
	svc, err := findService(name)
	if err != nil {
		return nil
	}
	spec, err := deployedSpec("", svc)
	if err != nil {
		return nil
	}
	return spec
}

// completeRegions completes a region of a service as the first argument.
func completeRegions(name *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		spec := specOf(*name)
		if spec == nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return regionNames(spec), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag registers the completion of a flag that cmd has.
func completeFlag(cmd *cobra.Command, name string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, f); err != nil {
		panic(err) // the flag does not exist
	}
}

// commandsOf returns all commands below one.
func commandsOf(parent *cobra.Command) (all []*cobra.Command) {
	for _, c := range parent.Commands() {
		all = append(append(all, c), commandsOf(c)...)
	}
	return all
}

// registerCompletions registers the completions of arguments and flags that name services.
func registerCompletions(root *cobra.Command) {
	for _, cmd := range commandsOf(root) {
		switch cmd.Name() {
		case "status", "top", "events", "usage", "load":
			if cmd.ValidArgsFunction == nil {
				cmd.ValidArgsFunction = completeServices
			}
		case "plan", "backtest", "down":
			cmd.ValidArgsFunction = completeServiceOrFile
		case "logs":
			cmd.ValidArgsFunction = completeLogs
		}
		switch cmd.CommandPath() {
		case "skyserve sim run", "skyserve sim list":
			cmd.ValidArgsFunction = completeScenarios
		}
		completeFlags(cmd)
		if cmd.LocalFlags().Lookup("service") != nil {
			completeFlag(cmd, "service", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				return serviceNames(), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
}
