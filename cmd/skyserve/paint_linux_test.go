package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Commands print colours on a terminal, and none in a pipe, with NO_COLOR, --no-color, no_color in the configuration file or
// a dumb terminal.
func TestColourOnlyOnTerminals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("no_color: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"terminal":   {nil, nil, colourRed + "error:" + colourNone},
		"NO_COLOR":   {[]string{"NO_COLOR=1"}, nil, "error:"},
		"--no-color": {nil, []string{"--no-color"}, "error:"},
		"no_color":   {[]string{"SKYSERVE_CONFIG=" + file}, nil, "error:"},
		"dumb":       {[]string{"TERM=dumb"}, nil, "error:"},
	} {
		cmd := skyserveCommand(t, append([]string{"status", "nowhere"}, c.args...)...)
		cmd.Env = append(append(cmd.Env, "NO_COLOR="), c.env...)
		tt := openTerminal(t, 80, 24, cmd)
		drawn := tt.rest()
		if !strings.Contains(drawn, c.want+" ") || c.want == "error:" && strings.Contains(drawn, "\x1b[") {
			t.Errorf("%s: got %q", name, drawn)
		}
	}
	cmd := skyserveCommand(t, "status", "nowhere")
	if out, _ := cmd.CombinedOutput(); strings.Contains(string(out), "\x1b") || !strings.Contains(string(out), "error:") {
		t.Errorf("in a pipe: %q", out)
	}
}
