//go:build compare && linux

package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// roleVariable marks a process of this test binary as a helper, with its role.
const roleVariable = "SKYSERVE_COMPARE_ROLE"

// Engine and client are separate processes, so that their CPU time and garbage collection are not
// counted for others.
func init() {
	roles := map[string]func(io.Reader, io.Writer) error{"engine": runEngine, "client": runClient}
	role, ok := roles[os.Getenv(roleVariable)]
	if !ok {
		return
	}
	if err := role(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(roleVariable)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// timeout is how long a process may take to start or to stop.
const timeout = 20 * time.Second

// group is a process and its children, in a separate process group.
type group struct {
	name       string
	id         int // of the process group
	log        string
	stdin      io.WriteCloser
	stdout     *bufio.Reader
	exited     chan struct{}
	stop       syscall.Signal // makes it exit at once
	forget     func() bool    // stops the wait for an interrupt
	exitedChan bool
}

// startGroup starts a command that is always stopped at the end of the test. The signal stop makes
// it exit at once; it is also sent when this process dies.
func startGroup(ctx context.Context, t *testing.T, stop syscall.Signal, environ []string, name, command string, args ...string) *group {
	t.Helper()
	g := &group{name: name, log: filepath.Join(t.TempDir(), name+".log"), exited: make(chan struct{}), stop: stop}
	log, err := os.Create(g.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(command, args...)
	cmd.Env, cmd.Stderr = environ, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: stop}
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	g.id, g.stdin, g.stdout = cmd.Process.Pid, stdin, bufio.NewReader(stdout)
	go func() {
		_, _ = cmd.Process.Wait()
		close(g.exited)
	}()
	g.forget = context.AfterFunc(ctx, func() { _ = syscall.Kill(-g.id, stop) })
	t.Cleanup(func() {
		g.end(t)
		_ = stdout.Close()
	})
	return g
}

// end stops the group, by force if necessary, and checks that no process remains.
func (g *group) end(t *testing.T) {
	if g.exitedChan {
		return
	}
	g.exitedChan = true
	g.forget() // the number of the group may soon be reused
	_ = g.stdin.Close()
	for _, signal := range []syscall.Signal{g.stop, syscall.SIGKILL} {
		_ = syscall.Kill(-g.id, signal)
		if within(timeout, func() bool { return len(members(g.id)) == 0 }) {
			<-g.exited
			if t.Failed() {
				t.Logf("%s wrote at last:\n%s", g.name, g.lastWords())
			}
			return
		}
	}
	t.Errorf("stopping %s: processes %v are still there", g.name, members(g.id))
}

// lastWords returns the end of a process's stderr.
func (g *group) lastWords() string {
	text, _ := os.ReadFile(g.log)
	return string(text[max(0, len(text)-2000):])
}

// within polls until the condition holds or the timeout ends.
func within(limit time.Duration, holds func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(limit); ; {
		if holds() {
			return true
		}
		select {
		case <-over:
			return false
		case <-tick.C:
		}
	}
}

// writeLine writes a value, or an empty line for nil, to a helper's stdin.
func (g *group) writeLine(t *testing.T, v any) {
	t.Helper()
	line, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.stdin.Write(append(line, '\n')); err != nil {
		t.Fatalf("writing to the %s: %v: %s", g.name, err, g.lastWords())
	}
}

// readLine reads a line of a helper's stdout into v.
func (g *group) readLine(t *testing.T, v any) {
	t.Helper()
	if err := readJSONLine(g.stdout, v); err != nil {
		t.Fatalf("reading from the %s: %v: %s", g.name, err, g.lastWords())
	}
}

// startHelper starts a helper and sends it its job.
func startHelper(ctx context.Context, t *testing.T, role string, job any) *group {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := startGroup(ctx, t, syscall.SIGKILL, append(os.Environ(), roleVariable+"="+role), role, self)
	g.writeLine(t, job)
	return g
}

// members lists the live processes of a group.
func members(id int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var pids []int
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		// The name, in parentheses, may contain any characters. State, parent and group follow.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 3 || fields[0] == "Z" || fields[2] != strconv.Itoa(id) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		pids = append(pids, pid)
	}
	return pids
}

// cpu returns the CPU time, user and system, of the processes of the group. It is the sum of utime and
// stime in /proc/PID/stat, read from the clock of the process, which has a resolution of nanoseconds
// and not hundredths of a second.
func (g *group) cpu(t *testing.T) time.Duration {
	t.Helper()
	const scheduled = 2 // the clock of the scheduler's counts, for all threads
	var sum time.Duration
	for _, pid := range g.alive(t) {
		var ts syscall.Timespec
		_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(^pid<<3|scheduled), uintptr(unsafe.Pointer(&ts)), 0)
		if errno != 0 {
			t.Fatalf("reading the CPU clock of %s: process %d: %v", g.name, pid, errno)
		}
		sum += time.Duration(ts.Nano())
	}
	return sum
}

// rss returns the resident memory of the group in bytes; memory shared by its processes counts for
// each of them.
func (g *group) rss(t *testing.T) int64 {
	t.Helper()
	var pages int64
	for _, pid := range g.alive(t) {
		statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			t.Fatal(err)
		}
		resident, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		pages += resident
	}
	return pages * int64(os.Getpagesize())
}

func (g *group) alive(t *testing.T) []int {
	t.Helper()
	pids := members(g.id)
	if len(pids) == 0 {
		t.Fatalf("%s has ended: %s", g.name, g.lastWords())
	}
	return pids
}

// raiseFileLimit lets this process and its children open as many files as the system allows, and
// returns that number.
func raiseFileLimit(t *testing.T, wanted int) int {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	highest := max(limit.Max, uint64(wanted))
	for _, try := range []syscall.Rlimit{{Cur: highest, Max: highest}, {Cur: limit.Max, Max: limit.Max}} {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &try); err == nil {
			return int(min(try.Cur, 1<<30))
		}
	}
	return int(limit.Cur)
}

// machine describes the machine of the measurements.
func machine() string {
	load, _ := os.ReadFile("/proc/loadavg")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	model := "unknown CPU"
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d cores (%s), Linux %s, %s, load average at the start %s", runtime.NumCPU(), model,
		strings.TrimSpace(string(kernel)), runtime.Version(), strings.Join(strings.Fields(string(load))[:3], " "))
}

// version returns the first line of a command's version output.
func version(t *testing.T, command string, args ...string) string {
	t.Helper()
	out, err := exec.Command(command, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("getting the version of %s: %v: %s", command, err, out)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// spread is a figure measured in several rounds.
type spread struct{ low, median, high float64 }

func spreadOf(values []float64) spread {
	s := slices.Sorted(slices.Values(values))
	return spread{s[0], s[len(s)/2], s[len(s)-1]}
}

// only prints only the median.
func (s spread) only(decimals int) string { return strconv.FormatFloat(s.median, 'f', decimals, 64) }

// write prints the median and the range.
func (s spread) write(decimals int) string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
	return f(s.median) + " (" + f(s.low) + ".." + f(s.high) + ")"
}
