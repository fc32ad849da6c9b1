package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	stopGrace   = 30 * time.Second // three times the drain timeout of a balancer
	maxBackoff  = 30 * time.Second
	maxLogSize  = 1 << 20 // of a unit's log; a larger one is truncated at the next start
	firstTail   = 4 << 10 // bytes of a log that are read first for its last lines
	unitLog     = "unit.log"
	minBackoff  = 100 * time.Millisecond
	programName = "skyserve" // the name of this binary in Unit.Args
)

// Exec runs units as child processes of the agent, which stop with it. It is for machines without
// systemd, and cannot run containers.
type Exec struct {
	// Dir is the agent's directory, in which units run.
	Dir string
	// RunInProcess runs a unit of this binary inside the agent's process, until ctx ends. args are the
	// arguments after the binary's name, log receives its output, and each value of reload requests
	// a reload of its files. nil = units of this binary are child processes, too.
	RunInProcess func(ctx context.Context, args []string, log io.Writer, reload <-chan os.Signal) error

	mu   sync.Mutex
	jobs map[string]*process
}

// process is a program that is restarted when it exits.
type process struct {
	immutableHash string
	program       string // its path; empty if it runs inside the agent's process
	runInProcess  func(ctx context.Context, args []string, log io.Writer, reload <-chan os.Signal) error
	reload        chan os.Signal
	stop          context.CancelFunc
	done          chan struct{}

	mu      sync.Mutex
	process *os.Process // nil while it is not running, or runs inside the agent's process
	running bool
	reason  string
	// starts counts how often the program was started, exitCode is that of its last exit.
	starts, exitCode int
}

// Names returns the units that the runner runs.
func (e *Exec) Names(context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.jobs)), nil
}

// Start starts a unit. It reports no progress, since no step is slow.
func (e *Exec) Start(ctx context.Context, u Unit, _ func(Progress)) (started bool, err error) {
	if u.Image != "" {
		return false, fmt.Errorf("running image %s: the runner exec cannot run containers; set runner to system", u.Image)
	}
	j := &process{immutableHash: u.immutableHash(), done: make(chan struct{}), reload: make(chan os.Signal, 1)}
	if e.RunInProcess != nil && u.Args[0] == programName {
		j.runInProcess = e.RunInProcess
	} else if j.program, err = exec.LookPath(u.Args[0]); err != nil {
		return false, err
	}
	e.mu.Lock()
	old := e.jobs[u.Name]
	e.mu.Unlock()
	if old != nil && old.immutableHash == u.immutableHash() {
		return false, nil
	}
	if err := e.Stop(ctx, u.Name); err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Join(e.Dir, u.Name), dirMode); err != nil {
		return false, err
	}
	runCtx, stop := context.WithCancel(context.Background())
	j.stop = stop
	e.mu.Lock()
	if e.jobs == nil {
		e.jobs = map[string]*process{}
	}
	e.jobs[u.Name] = j
	e.mu.Unlock()
	go j.runUntilStopped(runCtx, e.Dir, u)
	return true, nil
}

// runUntilStopped restarts the program whenever it exits, until ctx ends. The backoff doubles while
// the program exits within maxBackoff.
func (j *process) runUntilStopped(ctx context.Context, dir string, u Unit) {
	defer close(j.done)
	for backoff := minBackoff; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		began := time.Now()
		err := j.runOnce(ctx, dir, u)
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		reason := "exit status 0"
		if err != nil {
			reason = err.Error()
		}
		j.setState(nil, false, reason)
		j.recordExit(err)
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
	}
}

// runOnce runs the program until it exits. When ctx ends, it sends SIGTERM, and SIGKILL after
// stopGrace.
func (j *process) runOnce(ctx context.Context, dir string, u Unit) error {
	log, err := openLog(filepath.Join(dir, u.Name, unitLog))
	if err != nil {
		return err
	}
	defer log.Close()
	if j.runInProcess != nil {
		j.setState(nil, true, "")
		return j.runInProcess(ctx, u.Args[1:], log, j.reload)
	}
	signal.Ignore(syscall.SIGHUP) // inherited: a reload must not end a program that does not handle the signal yet
	cmd := exec.CommandContext(ctx, j.program, u.Args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, log, log, stopGrace
	cmd.Env = append(os.Environ(), u.environment()...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return err
	}
	j.setState(cmd.Process, true, "")
	return cmd.Wait()
}

// setState records whether the program is running, and why it is not.
func (j *process) setState(process *os.Process, running bool, reason string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if running {
		j.starts++
	}
	j.process, j.running, j.reason = process, running, reason
}

// recordExit records the exit code of the program.
func (j *process) recordExit(err error) {
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = max(0, exit.ExitCode()) // -1 after a signal
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.exitCode = code
}

// openLog opens a unit's log for appending, and truncates one above maxLogSize.
func openLog(path string) (*os.File, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogSize {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(path, flags, 0o600)
}

func (e *Exec) findJob(name string) *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.jobs[name]
}

// Reload sends SIGHUP.
func (e *Exec) Reload(_ context.Context, name string) error {
	j := e.findJob(name)
	if j == nil {
		return fmt.Errorf("reloading %s: the unit is not running", name)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.runInProcess != nil {
		select {
		case j.reload <- syscall.SIGHUP:
		default: // the last signal is still pending
		}
		return nil
	}
	if j.process == nil {
		return nil // it reads its files when it starts
	}
	return j.process.Signal(syscall.SIGHUP)
}

// Stop stops a unit with SIGTERM, and with SIGKILL after stopGrace.
func (e *Exec) Stop(_ context.Context, name string) error {
	j := e.findJob(name)
	if j == nil {
		return nil
	}
	j.stop()
	<-j.done
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.jobs, name)
	return nil
}

// Close stops all units.
func (e *Exec) Close() error {
	names, err := e.Names(context.Background())
	for _, name := range names {
		err = errors.Join(err, e.Stop(context.Background(), name))
	}
	return err
}

// Inspect returns the state of a unit, with the last lines of its log.
func (e *Exec) Inspect(_ context.Context, u Unit, lines int) (UnitState, error) {
	j := e.findJob(u.Name)
	if j == nil {
		return UnitState{Reason: "not started"}, nil
	}
	j.mu.Lock()
	state := UnitState{Running: j.running || j.reason == "", Reason: j.reason, Restarts: max(0, j.starts-1)} // without a reason, it is starting
	if !state.Running {
		state.ExitCode = j.exitCode
	}
	j.mu.Unlock()
	var err error
	if state.Lines, err = readLastLines(filepath.Join(e.Dir, u.Name, unitLog), lines); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return state, err
}

// readLastLines returns the last n lines of a file. It reads from the end of the file: checks read a few lines of
// logs that may be large.
func readLastLines(path string, n int) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	for length := int64(firstTail); ; length *= 4 {
		from := max(0, info.Size()-length)
		text, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
		if err != nil {
			return nil, err
		}
		if from == 0 || bytes.Count(bytes.TrimRight(text, "\n"), []byte("\n")) >= n {
			return lastLines(string(text), n), nil
		}
	}
}
