package main

import (
	"strings"
	"testing"
)

// A command accepts the former name of a flag, and its help shows only the new one.
func TestFormerFlagsAreAccepted(t *testing.T) {
	for path, flags := range formerFlags {
		for former, renamed := range flags {
			root := newRoot()
			cmd, _, err := root.Find(strings.Fields(path)[1:])
			if err != nil || cmd.CommandPath() != path {
				t.Fatalf("%s is no command: %v", path, err)
			}
			arg := "--" + former
			if f := cmd.Flags().Lookup(renamed); f == nil {
				t.Errorf("%s has no flag --%s", path, renamed)
				continue
			} else if f.NoOptDefVal == "" {
				arg += "=" + map[string]string{"duration": "7m", "int": "7", "float64": "0.7"}[f.Value.Type()]
			}
			if err := cmd.ParseFlags([]string{arg}); err != nil {
				t.Errorf("%s %s: %v", path, arg, err)
			} else if !cmd.Flags().Changed(renamed) {
				t.Errorf("%s %s does not set --%s", path, arg, renamed)
			}
			if strings.Contains(cmd.UsageString(), "--"+former+" ") {
				t.Errorf("the help of %s lists --%s", path, former)
			}
		}
	}
}
