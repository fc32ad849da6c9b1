package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// fakeSSH replaces ssh by a script, and returns its working directory.
func fakeSSH(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Chdir(dir)
}

// newTestSSHSource returns a source that uses the fake ssh until the test ends.
func newTestSSHSource(t *testing.T) *sshSource {
	t.Helper()
	s := newSSHSource(t.Context(), "gpu-1", "skyserve top", time.Second)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func snapshotLine(t *testing.T, service string) string {
	t.Helper()
	line, err := json.Marshal(telemetry.Snapshot{At: time.Unix(1_700_000_000, 0), Service: service, Regions: []telemetry.RegionSnapshot{}})
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

// The end of a session is reported with the last line of ssh, and the session restarts. Only the
// first session may prompt for a password.
func TestSSHRestartsEndedSession(t *testing.T) {
	fakeSSH(t, fmt.Sprintf(`echo "$*" >>args
echo '%s'
echo "Connection to gpu-1 closed \033[2J by remote host." >&2
exit 255
`, snapshotLine(t, "chat")))
	s := newTestSSHSource(t)
	for round := range 3 {
		got, source, err := s.Fetch(t.Context())
		if err != nil || got.Service != "chat" || source != "ssh gpu-1" {
			t.Fatalf("round %d: %+v, %q, %v", round, got, source, err)
		}
		if _, _, err = s.Fetch(t.Context()); err == nil || strings.Contains(err.Error(), "\x1b") ||
			!strings.HasPrefix(err.Error(), "ssh gpu-1: exit status 255: Connection to gpu-1 closed") {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	args, err := os.ReadFile("args")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(args)), "\n") {
		if strings.Contains(line, "BatchMode=yes") != (i > 0) || !strings.HasSuffix(line, " gpu-1 skyserve top") {
			t.Errorf("session %d: ssh %s", i, line)
		}
	}
}

// A host that returns nothing is retried with a growing backoff, during which the error is returned.
func TestSSHBacksOffAfterFailures(t *testing.T) {
	fakeSSH(t, "echo >>tries\necho 'Permission denied (publickey).' >&2\nexit 255\n")
	s := newTestSSHSource(t)
	begun := time.Unix(1_700_000_000, 0)
	now := begun
	s.now = func() time.Time { return now }
	tries := map[int]bool{} // attempts, by second
	for range 120 {
		before, _ := os.ReadFile("tries") // none before the first
		if _, _, err := s.Fetch(t.Context()); err == nil || err.Error() != "ssh gpu-1: exit status 255: Permission denied (publickey)." {
			t.Fatalf("got %v", err)
		}
		after, err := os.ReadFile("tries")
		if err != nil {
			t.Fatal(err)
		}
		if len(after) > len(before) {
			tries[int(now.Sub(begun).Seconds())] = true
		}
		now = now.Add(time.Second)
	}
	if want := map[int]bool{0: true, 1: true, 3: true, 7: true, 15: true, 31: true, 61: true, 91: true}; !maps.Equal(tries, want) {
		t.Errorf("attempts at %v, want %v", tries, want)
	}
}

// A slow reader receives the newest snapshot.
func TestSSHReturnsNewestSnapshot(t *testing.T) {
	var lines strings.Builder
	for i := range 50 {
		fmt.Fprintf(&lines, "echo '%s'\n", snapshotLine(t, fmt.Sprintf("chat-%d", i)))
	}
	fakeSSH(t, lines.String())
	s := newTestSSHSource(t)
	before := -1
	for before < 49 {
		got, _, err := s.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if _, err := fmt.Sscanf(got.Service, "chat-%d", &n); err != nil || n <= before {
			t.Fatalf("%s after chat-%d", got.Service, before)
		}
		before = n
	}
}

func TestSSHNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	s := newTestSSHSource(t)
	for range 2 {
		if _, _, err := s.Fetch(t.Context()); err == nil || err.Error() != `ssh gpu-1: exec: "ssh": executable file not found in $PATH` {
			t.Fatalf("got %v", err)
		}
	}
}

func TestIsSSHHost(t *testing.T) {
	for host, want := range map[string]bool{
		"gpu-1": true, "ops@gpu-1": true, "ssh://ops@gpu-1:2222": true, "10.0.0.7": true, "[::1]": true,
		"": false, "-oProxyCommand=x": false, "gpu 1": false, "gpu\n1": false, "gpu\x00": false,
	} {
		if got := isSSHHost(host); got != want {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
}

// Every argument arrives unchanged at the remote host, whatever its shell characters.
func TestShellQuoted(t *testing.T) {
	for _, word := range []string{"chat", "", "it's", "$(touch evil)", "a b", "`x`", `\`, "'", "''", "http://127.0.0.1:8101,http://h:1", "*", "~", "!", "é", "-n"} {
		got, err := exec.Command("sh", "-c", "printf '<%s>' "+shellQuoted(word)).Output()
		if err != nil || string(got) != "<"+word+">" {
			t.Errorf("%q arrives as %q, %v", word, got, err)
		}
	}
	o := topOptions{name: "chat", admins: []string{" http://a:1", "http://b:2;x"}, interval: 2 * time.Second}
	if got, want := o.remoteCommand(), "skyserve top chat --admin http://a:1 --admin 'http://b:2;x' -o json -n 1000000 --interval 2s"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
