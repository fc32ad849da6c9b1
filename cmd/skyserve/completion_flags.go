package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/lbd/policy"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/templates"
	"skyserve/tui"
)

// flagValues are the values of flags with a fixed set of values, by command and flag.
var flagValues = map[string]map[string][]string{
	"skyserve engine":          {"profile": profileNames(), "flavor": {"vllm", "sglang", "none"}},
	"skyserve forecast":        {"forecaster": forecasterNames(), "tier": tierWords},
	"skyserve init":            {"cloud": templates.Clouds()},
	"skyserve lb":              {"policy": service.ImplementedPolicies(), "order": service.ImplementedOrders(), "push": pushWords, "log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"}},
	"skyserve load":            {"tier": tierWords},
	"skyserve offers":          {"capacity": capacityWords},
	"skyserve plan":            {"forecaster": forecasterNames(), "peak-quantile": forecast.PeakQuantiles, "solver": {"highs", "cbc", "glpsol"}},
	"skyserve plan backtest":   {"forecaster": forecasterNames(), "peak-quantile": forecast.PeakQuantiles},
	"skyserve replica add":     {"capacity": capacityWords},
	"skyserve sim fuzz-policy": {"policy": policy.Names(), "against": policy.Names()},
	"skyserve sim replay":      {"policy": policy.Names(), "push": pushWords, "profile": profileNames()},
	"skyserve sim run":         {"policy": policy.Names(), "push": pushWords, "layout": {string(sim.Single), string(sim.Regional)}, "strategy": plan.StrategyNames()},
	"skyserve top":             {"theme": tui.ThemeNames()},
	"skyserve usage":           {"by": usageColumns},
}

var (
	tierWords     = []string{"fast", "normal", "deferred"}
	pushWords     = []string{"pending", "outstanding:", "blind"}
	capacityWords = []string{"reserved", "on_demand", "spot", "flex_start"}
)

// flagObjects complete values of flags that name parts of a service or regions of clouds, by command and flag.
var flagObjects = map[string]map[string]cobra.CompletionFunc{
	"skyserve events":        {"region": completeList(regionsOf)},
	"skyserve forecast":      {"region": completeList(regionsOf), "model": completeList(modelsOf)},
	"skyserve gc":            {"region": completeCloudRegions},
	"skyserve load":          {"model": completeList(modelsOf), "clients": completeList(placesOf), "target": completeList(placesOf), "weights": completeList(placesOf)},
	"skyserve offers":        {"region": completeCloudRegions},
	"skyserve offers blocks": {"region": completeCloudRegions},
	"skyserve offers buy":    {"region": completeCloudRegions},
	"skyserve plan":          {"survive": completeList(survivedOf)},
	"skyserve plan backtest": {"survive": completeList(survivedOf)},
	"skyserve replica add":   {"gpu": completeList(gpusOf), "model": completeList(modelsOf)},
	"skyserve up":            {"replace": completeReplaced},
}

// completeFlags registers the completions of a command's flags.
func completeFlags(cmd *cobra.Command) {
	path := cmd.CommandPath()
	for name, values := range flagValues[path] {
		completeFlag(cmd, name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	for name, complete := range flagObjects[path] {
		completeFlag(cmd, name, complete)
	}
}

// serviceOf returns the service that a command line names, by --service or as its first argument; empty = none.
func serviceOf(cmd *cobra.Command, args []string) string {
	if f := cmd.Flags().Lookup("service"); f != nil && f.Value.String() != "" {
		return f.Value.String()
	}
	if len(args) > 0 && slices.Contains(serviceNames(), args[0]) {
		return args[0]
	}
	return ""
}

// completeList completes one of the names that a list takes from the service file, also after a comma.
func completeList(list func(*service.Spec) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		spec := specOf(serviceOf(cmd, args))
		if spec == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		before := prefix[:strings.LastIndex(prefix, ",")+1]
		var words []string
		directive := cobra.ShellCompDirectiveNoFileComp
		for _, word := range list(spec) {
			words = append(words, before+word)
			if strings.HasSuffix(word, "=") {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
		}
		return words, directive
	}
}

// regionsOf, placesOf, survivedOf, modelsOf and gpusOf return the names of parts of a service.
func regionsOf(spec *service.Spec) []string { return regionNames(spec) }

func placesOf(spec *service.Spec) (words []string) {
	for _, r := range spec.Regions {
		words = append(words, r.Name.ShortName()+"=")
	}
	return words
}

func survivedOf(spec *service.Spec) []string { return append(regionNames(spec), "any") }

func modelsOf(spec *service.Spec) (names []string) {
	for _, m := range spec.Models {
		names = append(append(names, m.Name), m.Aliases...)
	}
	return names
}

func gpusOf(spec *service.Spec) (names []string) {
	for _, m := range spec.Models {
		for _, g := range m.GPUs {
			if name := (provision.ReplicaClass{GPU: g.Type, GPUs: max(1, g.Count)}).String(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// completeCloudRegions completes a region of a cloud, as CLOUD/REGION.
func completeCloudRegions(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, cloud := range []string{"aws", "gcp"} {
		for _, region := range service.KnownRegions(cloud) {
			names = append(names, cloud+"/"+region)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeReplaced completes the id of a machine of the service whose file is the argument, else of the only one.
func completeReplaced(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	name := ""
	if len(args) > 0 {
		if text, err := os.ReadFile(args[0]); err == nil {
			if spec, err := parseService(args[0], text); err == nil {
				name = spec.Name
			}
		}
	}
	return append(machineIDs(name, provision.KindBalancer), machineIDs(name, provision.KindReplica)...), cobra.ShellCompDirectiveNoFileComp
}

// completeScenarios completes the names of scenarios, or files.
func completeScenarios(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, s := range sim.Scenarios() {
		names = append(names, s.Name)
	}
	for _, f := range listedFleets() {
		names = append(names, f.Name)
	}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveDefault
}
