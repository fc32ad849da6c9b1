package agent

import (
	"testing"

	"skyserve/internal/testkit"
)

// systemd accepts the units of programs, whatever their arguments contain, and rejects a wrong setting.
func TestSystemdAcceptsUnits(t *testing.T) {
	s := &System{Dir: "/var/lib/skyserve"}
	units := map[string]string{
		"skyserve-lb.service":     s.unitText(Unit{Name: "lb", Args: []string{"/usr/local/bin/skyserve", "lb", "--config", "a b"}}),
		"skyserve-odd.service":    s.unitText(Unit{Name: "odd", Args: []string{"/usr/local/bin/skyserve", `50% "of" $HOME \n`, "line\nbreak", "", "{\"a\":[1]}"}}),
		"skyserve-memory.service": s.unitText(Unit{Name: "memory", Memory: 1 << 30, Args: []string{"/usr/local/bin/skyserve", "engine"}}),
	}
	for _, problem := range testkit.UnitProblems(t, units) {
		t.Error(problem)
	}
	if found := testkit.UnitProblems(t, map[string]string{"skyserve-bad.service": "[Service]\nExecStart=/bin/true\nRestart=allways\n"}); len(found) == 0 {
		t.Error("a wrong setting is not found")
	}
}
