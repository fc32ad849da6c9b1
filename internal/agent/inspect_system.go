package agent

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Inspect sees how a unit does.
func (s *System) Inspect(ctx context.Context, u Unit, lines int) (UnitState, error) {
	if u.Image == "" {
		return s.inspectProgram(ctx, unitPrefix+u.Name, lines)
	}
	return s.inspectContainer(ctx, unitPrefix+u.Name, lines)
}

// inspectProgram asks systemd, which tells properties in an order of its own: they are
// known by their names.
func (s *System) inspectProgram(ctx context.Context, name string, lines int) (UnitState, error) {
	text, err := s.call(ctx, "systemctl", "show", "--property=ActiveState,SubState,Result,NRestarts", name)
	if err != nil {
		return UnitState{}, err
	}
	is := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[key] = value
	}
	log, err := s.call(ctx, "journalctl", "--unit", name, "--lines", strconv.Itoa(lines), "--output", "cat", "--no-pager")
	seen := UnitState{
		Running: is["ActiveState"] == "active", Lines: lastLines(log, lines),
		Reason: strings.TrimSpace(is["ActiveState"] + " " + is["SubState"] + " " + is["Result"]),
	}
	seen.Restarts, _ = strconv.Atoi(is["NRestarts"]) // systemd of before 2018 does not count
	return seen, err
}

// inspectFormat is what is asked of a container: numbers and a word, and then Docker's error,
// which has blanks.
const inspectFormat = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.RestartCount}} {{.State.Error}}"

// inspectContainer asks Docker.
func (s *System) inspectContainer(ctx context.Context, name string, lines int) (UnitState, error) {
	text, err := s.call(ctx, "docker", "inspect", "--format", inspectFormat, name)
	if err != nil {
		return UnitState{Lost: true}, err
	}
	// What containers write to stderr comes on stderr: a shell joins the two.
	log, err := s.call(ctx, "sh", "-c", `docker logs --tail "$1" "$2" 2>&1`, "sh", strconv.Itoa(lines), name)
	seen := UnitState{Lines: lastLines(log, lines)}
	is := strings.SplitN(strings.TrimSpace(text), " ", 5)
	if len(is) < 4 {
		return seen, err
	}
	seen.Running = is[0] == "running"
	seen.Restarts, _ = strconv.Atoi(is[3]) // Docker writes a number
	if seen.Running {
		return seen, err
	}
	seen.Reason = fmt.Sprintf("it is %s, exit code %s", is[0], is[1])
	if is[2] == "true" {
		seen.Reason += ", out of memory"
	}
	if len(is) == 5 {
		seen.Reason += ", " + is[4]
	}
	seen.Lost = is[0] == "exited" || is[0] == "created" || is[0] == "dead" // else Docker starts it again
	return seen, err
}
