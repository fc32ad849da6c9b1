package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker on a release build.
var version = "dev"

// versionInfo returns the version, Go version and platform of this binary, and its revision where the
// build recorded one.
func versionInfo() map[string]string {
	info := map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" {
				info["revision"] = s.Value
			}
		}
	}
	return info
}

func newVersionCmd() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  skyserve version -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := versionInfo()
			switch output {
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
			case "text":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "skyserve %s (%s, %s)\n", info["version"], info["go"], info["platform"])
				return err
			}
			return usage(fmt.Errorf("-o %s: must be one of text, json", output), "")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	return cmd
}
