package agent

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// Runner runs units. Its methods are safe to repeat; one goroutine changes what runs,
// others may Look.
type Runner interface {
	// Names are the units that it runs or means to, also those of an earlier agent.
	Names(ctx context.Context) ([]string, error)
	// Start has a unit run, and starts it again when it ends. What runs with the same
	// Fixed part runs on: started is false then. note is told what takes long.
	Start(ctx context.Context, u Unit, note func(Phase, string)) (started bool, err error)
	// Reload tells a unit that its files changed.
	Reload(ctx context.Context, name string) error
	// Stop ends a unit, giving it time to finish; none of that name is no error.
	Stop(ctx context.Context, name string) error
	// Look sees how a unit does, with the last lines that it wrote.
	Look(ctx context.Context, u Unit, lines int) (Seen, error)
}

// Seen is what a Runner sees of a unit.
type Seen struct {
	Running bool
	// Reason says why it does not run.
	Reason string
	// Again is how often it was started again by itself.
	Again int
	// Lost says that nobody but Start has it run again.
	Lost  bool
	Lines []string
}

// environment is a unit's variables with its secrets, NAME=VALUE, sorted.
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

// lastLines are the last n lines of a text.
func lastLines(text string, n int) []string {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-n):]
}
