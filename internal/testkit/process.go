package testkit

import (
	"io"
	"os"
	"os/exec"
	"testing"
)

// Rerun runs the test binary again in a process of its own until the test ends, with a variable NAME=VALUE by
// which its TestMain knows what to serve. It returns the output of the process, which ends when its input does.
func Rerun(t testing.TB, variable string) io.Reader {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), variable), t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return out
}
