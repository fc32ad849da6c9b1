package main

import (
	"bytes"
	"strings"
	"testing"
)

// A misspelt command is an error of usage, with the command that was probably meant.
func TestUnknownCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"stattus"}, "error: unknown command \"stattus\"\nhint: did you mean 'status'?\n"},
		{[]string{"--no-color", "xyzzy"}, "error: unknown command \"xyzzy\"\nhint: run 'skyserve --help' to list the commands\n"},
		{[]string{"completion", "tcsh"}, "error: unknown command \"tcsh\"\nhint: did you mean 'bash' or 'fish' or 'zsh'?\n"},
		{[]string{"version", "extra"}, "error: accepts no arguments; received \"extra\"\nhint: run 'skyserve version --help' for an example\n"},
		{[]string{"engine", "extra"}, "error: accepts no arguments; received \"extra\"\nhint: run 'skyserve engine --help' for an example\n"},
		{[]string{"sim", "fuzz-policy", "cost"}, "error: accepts no arguments; received \"cost\"\nhint: run 'skyserve sim fuzz-policy --help' for an example\n"},
	} {
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), c.args, &out, &errOut); code != exitUsage || errOut.String() != c.want || out.Len() > 0 {
			t.Errorf("skyserve %s: exit %d, %q, %q", strings.Join(c.args, " "), code, out.String(), errOut.String())
		}
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"completion", "bash"}, {"__complete", "sta"}} {
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), args, &out, &errOut); code != exitOK || out.Len() == 0 {
			t.Errorf("skyserve %s: exit %d, %s", strings.Join(args, " "), code, errOut.String())
		}
	}
}
