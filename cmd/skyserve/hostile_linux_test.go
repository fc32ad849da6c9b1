package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"skyserve/internal/testkit"
)

// A terminal receives only the control sequences that commands draw with.
func TestTerminalReceivesOnlyOwnSequences(t *testing.T) {
	testkit.Slow(t)
	good := hostileServer(t, hostileAdmin())
	hostileService(t, good)
	for _, c := range []struct {
		args    []string
		shows   string
		own     string // allowed control sequence
		endless bool
	}{
		{args: []string{"status", "--watch"}, shows: "us-0", own: clearScreen, endless: true},
		{args: []string{"logs", "chat", "us-0"}, shows: "last HOSTILE"},
		{args: []string{"usage"}, shows: "QUOTA"},
		{args: []string{"explain", "a"}, shows: "request a"},
		{args: []string{"load", "--target", "us=" + good, "--clients", "us=1", "--duration", "300ms"}, shows: "first error", own: clearLine},
	} {
		t.Run(c.args[0], func(t *testing.T) {
			cmd := skyserveCommand(t, c.args...)
			cmd.Env = append(cmd.Env, "SKYSERVE_HOME="+os.Getenv("SKYSERVE_HOME"))
			tt := openTerminal(t, 200, 40, cmd)
			tt.await(c.shows)
			drawn := tt.drawn.String()
			if c.endless {
				if _, err := io.WriteString(tt.side, "\x03"); err != nil {
					t.Fatal(err)
				}
			}
			drawn += strings.ReplaceAll(tt.rest(), "^C", "")
			if !strings.Contains(drawn, "HOSTILE") || !strings.Contains(drawn, c.own) {
				t.Errorf("drew %q", drawn)
			}
			drawn = strings.ReplaceAll(drawn, "\r\n", "\n") // the terminal's own line ends
			if c.own != "" {
				drawn = strings.ReplaceAll(drawn, c.own, "")
			}
			for _, own := range []string{colourRed, colourGreen, colourYellow, colourDim, colourNone} {
				drawn = strings.ReplaceAll(drawn, own, "")
			}
			if where := harmful(drawn); where != "" {
				t.Errorf("drew %s", where)
			}
			_ = cmd.Wait() // the exit code for a hostile service does not matter here
		})
	}
}
