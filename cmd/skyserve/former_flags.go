package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// formerFlags are the names of flags, by command and name in the previous version. The former names are accepted
// for one version, and help does not list them.
var formerFlags = map[string]map[string]string{
	"skyserve engine":          {"grace": "grace-period", "old-metrics": "legacy-metrics"},
	"skyserve forecast":        {"origin-step": "backtest-step"},
	"skyserve gc":              {"zone": "dns-zone"},
	"skyserve plan":            {"reserve": "compare-reserved", "list-prices": "builtin-prices", "epsilon": "local-share", "peak": "peak-quantile", "switch": "reuse-machines"},
	"skyserve plan backtest":   {"until": "to", "epsilon": "local-share", "peak": "peak-quantile", "switch": "reuse-machines"},
	"skyserve sim calibrate":   {"kv": "kv-tokens", "max-running": "max-num-seqs"},
	"skyserve sim fuzz-policy": {"draws": "scenarios"},
	"skyserve sim run":         {"scale": "rate-scale"},
}

// acceptFormerFlags makes cmd and its subcommands accept formerFlags.
func acceptFormerFlags(cmd *cobra.Command) {
	if former := formerFlags[cmd.CommandPath()]; former != nil {
		cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
			if renamed, ok := former[name]; ok {
				name = renamed
			}
			return pflag.NormalizedName(name)
		})
	}
	for _, c := range cmd.Commands() {
		acceptFormerFlags(c)
	}
}
