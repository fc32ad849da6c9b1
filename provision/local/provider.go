package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Timeouts of starting and stopping a process.
const (
	// startTimeout is how long a process may take to hold its object file, which is its first action. Only an overloaded
	// machine delays it by more than a second: a process that fails exits.
	startTimeout = 2 * time.Minute
	// DefaultGrace is how long a process may take to exit after SIGTERM. A balancer drains its requests for
	// 10 s, then hands off its stored responses and its history, which takes up to 4 s.
	DefaultGrace = 15 * time.Second
	// killTimeout is how long the system may take to end a killed process.
	killTimeout = 5 * time.Second
	// repairTimeout is how long a process may take to repair its object file.
	repairTimeout = 2 * watchInterval
	// processPollInterval is the polling interval for a process that starts or ends.
	processPollInterval = 10 * time.Millisecond
)

// processName is the process name in process lists, independent of the file name of the binary.
const processName = "skyserve"

// Provider runs the objects of one service as processes of this machine.
type Provider struct {
	svc     Service
	grace   time.Duration
	spec    *service.Spec    // see WithSpec
	regions []service.Region // see InRegions

	*program
	installing *sync.Mutex // guards program: launches run at once
}

// program is the binary that machines run. It is installed at the first launch.
type program struct {
	exe   string
	build string
}

// NewProvider returns a provider that runs the objects of svc with the binary exe, whose hash is build. Both
// are results of Service.Install, which the provider calls if exe is empty. grace is how long a process may
// take to exit before it is killed; 0 means DefaultGrace.
func NewProvider(svc Service, exe, build string, grace time.Duration) *Provider {
	if grace <= 0 {
		grace = DefaultGrace
	}
	return &Provider{svc: svc, grace: grace, program: &program{exe, build}, installing: &sync.Mutex{}}
}

// List returns every object of the service.
func (p *Provider) List(_ context.Context, name string) ([]provision.Object, error) {
	if name != p.svc.name {
		return nil, fmt.Errorf("listing the objects of %s: this provider is for service %s", name, p.svc.name)
	}
	have, err := p.svc.Objects()
	return slices.DeleteFunc(have, func(o provision.Object) bool {
		return p.regions != nil && !slices.Contains(p.regions, o.Region)
	}), err
}

// InRegions returns a provider that lists the objects of some regions only.
func (p *Provider) InRegions(regions ...service.Region) *Provider {
	some := *p
	some.regions = append([]service.Region{}, regions...)
	return &some
}

// waitHeld waits until the started process holds its object file, or exits. If it exits because another
// process already holds the same object, for instance one of an interrupted `up`, waitHeld returns that
// object.
func (p *Provider) waitHeld(ctx context.Context, w provision.Desired, cmd *exec.Cmd, logBegin int64) (provision.Object, error) {
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }() // reaps the process
	return p.waitHeldBy(ctx, w, cmd.Process.Pid, exited, logBegin)
}

// waitHeldBy is waitHeld for a process by its id; exited receives its exit error.
func (p *Provider) waitHeldBy(ctx context.Context, w provision.Desired, pid int, exited <-chan error, logBegin int64) (provision.Object, error) {
	id := w.ID
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the process did not write its object file within "+startTimeout.String()))
	defer cancel()
	for {
		rec, alive, err := readObject(p.svc.objectFile(id))
		if alive && err == nil && rec.PID == pid {
			return p.svc.objectFromRecord(id, rec, true, nil), nil
		}
		select {
		case err := <-exited:
			if o, runs := p.runningMachine(w); runs {
				return o, nil
			}
			return provision.Object{}, p.startError(id, err, logBegin)
		case <-ctx.Done():
			return provision.Object{}, fmt.Errorf("starting %s: %w", id, context.Cause(ctx))
		case <-time.After(processPollInterval):
		}
	}
}

// startError returns the error of a process that exited before it was ready.
func (p *Provider) startError(id string, err error, logBegin int64) error {
	if err == nil {
		err = errors.New("exited immediately with status 0")
	}
	file := p.svc.LogFile(id)
	lines, _ := tailFrom(file, logBegin, maxErrorLines) // the log lines are optional
	return &provision.StartError{ID: id, Err: err, Log: lines, File: file}
}

// Terminate sends SIGTERM to the process of o, kills it after the grace period, and removes its disk
// and object file.
func (p *Provider) Terminate(ctx context.Context, o provision.Object) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.stopProcess(ctx, o.ID); err != nil {
		return err
	}
	if err := os.RemoveAll(p.svc.machineDir(o.ID)); err != nil {
		return fmt.Errorf("removing the disk of %s: %w", o.ID, err)
	}
	return p.removeObject(o.ID)
}

// stopProcess ends the process of an object, if there is one.
func (p *Provider) stopProcess(ctx context.Context, id string) error {
	for _, step := range []struct {
		signal  unix.Signal
		timeout time.Duration
	}{{unix.SIGTERM, p.grace}, {unix.SIGKILL, killTimeout}} {
		rec, alive, err := p.readHolder(ctx, id)
		if !alive {
			return nil
		}
		if err != nil {
			return fmt.Errorf("finding the process of %s: %w", id, err)
		}
		if err := unix.Kill(rec.PID, step.signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signalling process %d: %w", rec.PID, err)
		}
		if p.waitReleased(ctx, id, step.timeout) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("stopping %s: its process still runs after SIGKILL and holds the lock on %s", id, p.svc.objectFile(id))
}

// readHolder returns the record of the process that holds an object file. If the file is damaged, it waits
// until the process has repaired it.
func (p *Provider) readHolder(ctx context.Context, id string) (rec record, alive bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	for {
		rec, alive, err = readObject(p.svc.objectFile(id))
		if !alive || err == nil || !sleep(ctx, pollInterval) {
			return rec, alive, err
		}
	}
}

// waitReleased waits until no process holds an object file; false when timeout or ctx ended first.
func (p *Provider) waitReleased(ctx context.Context, id string, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if _, alive, _ := readObject(p.svc.objectFile(id)); !alive {
			return true
		}
		if !sleep(ctx, processPollInterval) {
			return false
		}
	}
}

// removeObject removes an object file that no process holds.
func (p *Provider) removeObject(id string) error {
	path := p.svc.objectFile(id)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f, err := lockFile(path) // no other process can hold the object meanwhile
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing object %s: %w", path, err)
	}
	defer f.Close()
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing object %s: %w", path, err)
	}
	return nil
}
