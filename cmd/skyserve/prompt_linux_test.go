package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Ctrl-C at a prompt ends the command at once, and changes nothing.
func TestCtrlCEndsAPrompt(t *testing.T) {
	svc := storedService(t, "")
	writeObject(t, svc.Dir(), "objects/lb-us-0.json")
	cmd := skyserveCommand(t, "down", "chat")
	cmd.Env = append(cmd.Env, "SKYSERVE_HOME="+os.Getenv("SKYSERVE_HOME"))
	tt := openTerminal(t, 80, 24, cmd)
	tt.await("Proceed? [y/N]")
	tt.press("\x03", "\ninterrupted")
	if drawn := tt.rest(); strings.Contains(drawn, "error:") {
		t.Errorf("got %q", drawn)
	}
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != exitInterrupted {
		t.Errorf("it ended with %v, want exit code %d", err, exitInterrupted)
	}
	if _, err := os.Stat(svc.Dir()); err != nil {
		t.Error(err)
	}
}
