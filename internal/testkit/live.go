//go:build compare && linux

package testkit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"skyserve/internal/atomicfile"
)

// LiveService is a local service of real processes, of the binary that `make build` writes.
type LiveService struct {
	Name     string
	Program  string // path of the binary
	Home     string // SKYSERVE_HOME
	Document string // path of its service.yaml
	Port     int    // of the first balancer

	t *testing.T
}

// NewLiveService returns a service that is not started yet. The document is its service.yaml, in which %d stands
// for the port. root is the path of the repository. The service is removed when the test ends.
func NewLiveService(t *testing.T, root, name, document string) *LiveService {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(root, "bin/skyserve"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "skyserve-live-") // t.TempDir is removed before the service is down
	if err != nil {
		t.Fatal(err)
	}
	s := &LiveService{Name: name, Program: program, Home: filepath.Join(dir, "home"), Document: filepath.Join(dir, "service.yaml"), Port: LocalPort(), t: t}
	t.Cleanup(func() {
		if out, err := s.Command("down", name, "--yes").CombinedOutput(); err != nil {
			t.Errorf("stopping the service: %v: %s", err, out)
		}
		_ = os.RemoveAll(dir)
	})
	if err := atomicfile.WriteFile(s.Document, fmt.Appendf(nil, document, s.Port), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// Quickstart returns the quickstart's service.yaml as a document for NewLiveService.
func Quickstart(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples/quickstart/service.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for old, changed := range map[string]string{"name: quickstart": "name: " + name, "\nlocal:\n": "\nlocal:\n  port: %d\n"} {
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("the quickstart has no %q", old)
		}
		text = bytes.Replace(text, []byte(old), []byte(changed), 1)
	}
	return string(text)
}

// Command returns a command of the program.
func (s *LiveService) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.Program, args...)
	cmd.Env = append(os.Environ(), "SKYSERVE_HOME="+s.Home)
	return cmd
}

// Run runs a command of the program and returns its standard output.
func (s *LiveService) Run(args ...string) []byte {
	s.t.Helper()
	cmd := s.Command(args...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%v: %v: %s", args, err, errors.Bytes())
	}
	return out
}

// MachineDir returns the directory that is the disk of a machine.
func (s *LiveService) MachineDir(machine string) string {
	return filepath.Join(s.Home, "services", s.Name, "machines", machine)
}

// Machines returns the names of the service's machines, sorted.
func (s *LiveService) Machines() (names []string) {
	s.t.Helper()
	entries, err := os.ReadDir(s.MachineDir(""))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// Processes returns the processes of machines, by machine.
func (s *LiveService) Processes() map[string][]int {
	dir, running := s.MachineDir("")+"/", map[string][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline") // it may have ended
		if _, rest, found := strings.Cut(string(line), dir); found {
			machine, _, _ := strings.Cut(rest, "/")
			running[machine] = append(running[machine], pid)
		}
	}
	return running
}

// PID returns the process of a machine; 0 if it does not run.
func (s *LiveService) PID(machine string) int {
	if pids := s.Processes()[machine]; len(pids) > 0 {
		return pids[0]
	}
	return 0
}

// Kill kills the process of a machine as kill -9 does, and reports whether there was one.
func (s *LiveService) Kill(machine string) bool {
	pid := s.PID(machine)
	return pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
}

// URL returns the URL of the balancer with an index.
func (s *LiveService) URL(balancer int) string {
	return fmt.Sprintf("http://127.0.0.1:%d", s.Port+balancer)
}
