package tui

import (
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

// A region without replicas says that its models start on demand, if one of them does.
func TestRegionOfColdModels(t *testing.T) {
	plain := mustTheme(NewTheme(ThemePlain, false))
	for cold, want := range map[bool]string{true: "local/us  no replicas, models start at their first request", false: "local/us  no replicas"} {
		s := &telemetry.Snapshot{At: noon, Service: "chat", Regions: []telemetry.RegionSnapshot{{Name: "local/us", Models: []telemetry.ModelSnapshot{{Model: "m", Cold: cold}}}}}
		frame := strings.Split(Render(s, nil, 0, 0, plain), "\n")
		found := false
		for _, line := range frame {
			found = found || strings.TrimSpace(line) == want
		}
		if !found {
			t.Errorf("cold %v: no line %q in\n%s", cold, want, strings.Join(frame, "\n"))
		}
	}
}
