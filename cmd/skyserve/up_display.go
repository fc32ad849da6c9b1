package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/provision"
	"skyserve/provision/local"
)

const (
	// drawInterval is how often a terminal is redrawn while machines start.
	drawInterval = time.Second
	// shownFailureLines is the number of log lines that `up` prints of a failed replica.
	shownFailureLines = 10
)

// startDisplay shows machines that start: on a terminal as rows that are redrawn, elsewhere as lines.
type startDisplay struct {
	up    *up
	block *terminalBlock // nil where the output is no terminal

	mu   sync.Mutex
	view *startView
}

// newStartDisplay returns the display of a run.
func newStartDisplay(u *up) *startDisplay {
	return &startDisplay{up: u, block: u.block, view: newStartView(time.Now())}
}

// observe shows the status of a machine.
func (d *startDisplay) observe(o provision.Object, s agent.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.view.observe(time.Now(), o, s)
	d.print()
}

// print prints what is due; the caller holds the lock. On a terminal, where rows show the phases, lines
// only tell the end of a start.
func (d *startDisplay) print() {
	now := time.Now()
	if d.block == nil {
		for _, line := range d.view.dueLines(now) {
			d.up.printLine("%s", line)
		}
		return
	}
	for _, id := range d.view.changed {
		if m := d.view.machines[id]; m.isSettled() || m.status.Phase == agent.PhaseDraining {
			d.up.printLine("%s %s", id, m.text(now))
		}
	}
	d.view.changed = nil
	d.up.drawBlock(d.view.rows(now))
}

// run updates the display until stop is called, which prints what is left and removes the rows.
func (d *startDisplay) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(drawInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				d.mu.Lock()
				d.print()
				d.mu.Unlock()
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.view.allowLine()
		d.print()
		d.up.drawBlock(nil)
	}
}

// slowest returns the line about the slowest replica; empty if no replica became ready.
func (d *startDisplay) slowest() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.view.slowest()
}

// observeStart shows a status that a delivery to some machines observes.
func (u *upRun) observeStart(have []provision.Object) func(id string, s agent.Status) {
	return func(id string, s agent.Status) {
		i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == id })
		if i >= 0 {
			u.starts.observe(have[i], s)
		}
	}
}

// printFailedStarts prints why machines failed: their last log lines and the next step.
func (u *upRun) printFailedStarts(failed []*deploy.StartFailedError) {
	for _, f := range failed {
		fmt.Fprintf(u.errOut, "%v\n", f)
		lines := f.Failure.Lines
		for _, line := range lines[max(0, len(lines)-shownFailureLines):] {
			fmt.Fprintf(u.errOut, "  | %s\n", line)
		}
		fmt.Fprintf(u.errOut, "  next step: %s\n  log: skyserve logs %s %s\n", f.Failure.Hint, u.spec.Name, f.ID)
	}
}

// failedCode returns the exit code of a run in which machines failed: 1 if all replicas of the service
// did, else 3.
func failedCode(failed []*deploy.StartFailedError, wants []provision.Desired) int {
	replicas, hasReplicas := wantedReplicas(wants), false
	for _, f := range failed {
		hasReplicas = hasReplicas || replicas[f.ID]
		delete(replicas, f.ID)
	}
	if hasReplicas && len(replicas) == 0 {
		return exitFailed
	}
	return exitPartial
}

// wantedReplicas returns the IDs of the replicas in wants.
func wantedReplicas(wants []provision.Desired) map[string]bool {
	replicas := map[string]bool{}
	for _, w := range wants {
		if w.Kind == provision.KindReplica {
			replicas[w.ID] = true
		}
	}
	return replicas
}

// failedStartsError prints the failed machines of an error and returns what the command returns for it;
// nil if none failed.
func (u *upRun) failedStartsError(err error) error {
	failed := deploy.FailedStarts(err)
	if len(failed) == 0 {
		return nil
	}
	u.printFailedStarts(failed)
	replicas, hint := wantedReplicas(u.changes.Desired), u.afterFailure(err)
	what := "replicas"
	causes := make([]string, len(failed))
	for i, f := range failed {
		causes[i] = f.ID + ": " + f.Failure.String()
		if !replicas[f.ID] {
			what = "balancers and replicas"
		}
		if f.Failure.Kind == agent.FailurePortInUse && u.clouds.localService != nil {
			hint = u.portHint()
		}
	}
	slices.Sort(causes)
	failure := fmt.Errorf("starting %s: these %s will not become ready without a change: %s", u.spec.Name, what, strings.Join(causes, "; "))
	if len(failed) < countErrors(err) { // others were not ready at the timeout
		failure = err
	}
	return &exitError{code: failedCode(failed, u.changes.Desired), err: failure, hint: hint}
}

// portHint returns the hint after a local machine could not listen on a port. The ports of a service that ran before
// cannot be changed without deleting it.
func (u *upRun) portHint() string {
	if len(u.changes.Observed) > 0 {
		return "stop the process that uses the port, then: skyserve up " + u.file
	}
	return fmt.Sprintf("stop the process that uses the port, or run 'skyserve down %s' and choose another %s in %s; then: skyserve up %s", u.spec.Name, local.PortSetting, u.file, u.file)
}

// countErrors returns the number of joined errors.
func countErrors(err error) int {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // of this error itself
		return len(joined.Unwrap())
	}
	return 1
}
