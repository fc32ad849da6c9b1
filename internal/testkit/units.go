package testkit

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/atomicfile"
)

// UnitProblems returns what systemd-analyze reports about unit files, by their names such as a.service. It omits
// programs that this machine does not have. It skips the test where systemd is not installed.
func UnitProblems(t testing.TB, units map[string]string) []string {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skipf("NOT JUDGED: systemd units: systemd-analyze is not installed")
	}
	dir, args := t.TempDir(), []string{"verify", "--man=no"}
	for name, text := range units {
		path := filepath.Join(dir, name)
		if err := atomicfile.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	out, _ := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput() // its exit code counts missing programs
	var problems []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "is not executable: No such file") {
			problems = append(problems, strings.ReplaceAll(line, dir+"/", ""))
		}
	}
	return problems
}
