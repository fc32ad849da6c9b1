package agent

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Inspect returns the state of a unit, with the last lines of its log.
func (s *System) Inspect(ctx context.Context, u Unit, lines int) (UnitState, error) {
	if u.Image == "" {
		return s.inspectProgram(ctx, unitPrefix+u.Name, lines)
	}
	return s.inspectContainer(ctx, unitPrefix+u.Name, lines)
}

// inspectProgram reads the state from systemd. It parses properties by name, since systemd prints
// them in its own order.
func (s *System) inspectProgram(ctx context.Context, name string, lines int) (UnitState, error) {
	text, err := s.call(ctx, "systemctl", "show", "--property=ActiveState,SubState,Result,NRestarts", name)
	if err != nil {
		return UnitState{}, err
	}
	properties := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		properties[key] = value
	}
	log, err := s.call(ctx, "journalctl", "--unit", name, "--lines", strconv.Itoa(lines), "--output", "cat", "--no-pager")
	state := UnitState{
		Running: properties["ActiveState"] == "active", Lines: lastLines(log, lines),
		Reason: fmt.Sprintf("ActiveState=%s SubState=%s Result=%s", properties["ActiveState"], properties["SubState"], properties["Result"]),
	}
	state.Restarts, _ = strconv.Atoi(properties["NRestarts"]) // systemd before 2018 has no NRestarts
	return state, err
}

// inspectFormat is the format for docker inspect: numbers and a word, then Docker's error, which
// contains spaces.
const inspectFormat = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.RestartCount}} {{.State.Error}}"

// inspectContainer reads the state from Docker.
func (s *System) inspectContainer(ctx context.Context, name string, lines int) (UnitState, error) {
	text, err := s.call(ctx, "docker", "inspect", "--format", inspectFormat, name)
	if err != nil {
		return UnitState{NeedsStart: true}, err
	}
	// docker logs prints a container's stderr on stderr: a shell merges the two.
	log, err := s.call(ctx, "sh", "-c", `docker logs --tail "$1" "$2" 2>&1`, "sh", strconv.Itoa(lines), name)
	state := UnitState{Lines: lastLines(log, lines)}
	fields := strings.SplitN(strings.TrimSpace(text), " ", 5)
	if len(fields) < 4 {
		return state, err
	}
	state.Running = fields[0] == "running"
	state.Restarts, _ = strconv.Atoi(fields[3]) // Docker always prints a number
	if state.Running {
		return state, err
	}
	state.Reason = fmt.Sprintf("container %s, exit code %s", fields[0], fields[1])
	state.ExitCode, _ = strconv.Atoi(fields[1]) // Docker always prints a number
	if fields[2] == "true" {
		state.Reason += ", out of memory"
	}
	if len(fields) == 5 {
		state.Reason += ", " + fields[4]
	}
	state.NeedsStart = fields[0] == "exited" || fields[0] == "created" || fields[0] == "dead" // otherwise Docker restarts it
	return state, err
}
