package agent

import (
	"context"
	"maps"
	"slices"
	"strings"

	"skyserve/internal/telemetry"
)

// Runner runs units. Its methods are idempotent. Only one goroutine changes units; others may call
// Inspect.
type Runner interface {
	// Names returns the units that the runner runs or should run, including those that were started
	// before the agent was restarted.
	Names(ctx context.Context) ([]string, error)
	// Start starts a unit and restarts it when it exits. A unit whose ImmutableHash has not changed keeps
	// running: started is then false. report receives the progress of slow steps.
	Start(ctx context.Context, u Unit, report func(Progress)) (started bool, err error)
	// Reload signals a unit that its files have changed.
	Reload(ctx context.Context, name string) error
	// Stop stops a unit gracefully; a missing unit is no error.
	Stop(ctx context.Context, name string) error
	// Inspect returns the state of a unit, with the last lines of its log.
	Inspect(ctx context.Context, u Unit, lines int) (UnitState, error)
}

// Progress is the progress of preparing a unit.
type Progress struct {
	// Phase and Reason are those of the machine meanwhile.
	Phase  Phase
	Reason string
	// ActivePhases are the phases of the start that are in progress, which may overlap.
	ActivePhases []Step
}

// Step is a phase of a start in progress; Bytes is nil where the bytes are unknown.
type Step struct {
	Name  telemetry.StartPhaseName
	Bytes *telemetry.ByteCount
}

// UnitState is the observed state of a unit.
type UnitState struct {
	Running bool
	// Reason is why the unit is not running, ExitCode the code with which it exited; 0 = unknown.
	Reason   string
	ExitCode int
	// Restarts is the number of automatic restarts.
	Restarts int
	// NeedsStart is true when the unit does not restart by itself: Start must be called.
	NeedsStart bool
	// Lines are the last lines of the unit's log.
	Lines []string
}

// environment returns a unit's variables with its secrets, as NAME=VALUE, sorted.
func (u Unit) environment() []string {
	all := maps.Clone(u.Env)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, u.Secrets)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// lastLines returns the last n lines of a text.
func lastLines(text string, n int) []string {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-n):]
}
