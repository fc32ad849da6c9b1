package tui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// scenes are the screens that golden files cover.
var scenes = []struct {
	name     string
	snapshot *telemetry.Snapshot
	act      func(*desk)
}{
	{"overview", normal(), func(*desk) {}},
	{"replicas", normal(), func(d *desk) { d.press("2") }},
	{"requests", normal(), func(d *desk) { d.run(d.press("3")); d.press("j", "j") }},
	{"forecast", normal(), func(d *desk) { d.run(d.press("4")) }},
	{"plan", normal(), func(d *desk) { d.press("5", "j") }},
	{"donations", ownMachines(), func(d *desk) { d.press("6", "j") }},
	{"queues", normal(), func(d *desk) { d.press("7") }},
	{"batches", withBatches(), func(d *desk) { d.press("7", "j", "j") }},
	{"events", normal(), func(d *desk) { d.press("8", "j") }},
	{"models", normal(), func(d *desk) { d.press("9", "j") }},
	{"tenants", normal(), func(d *desk) { d.press("0", "j") }},
	{"cost", normal(), func(d *desk) { d.press("$") }},
	{"empty", &telemetry.Snapshot{At: noon, Service: "chat"}, func(*desk) {}},
	{"lost", normal(), func(d *desk) { d.fetch.err = errRefused; d.poll(12 * time.Second) }},
	{"many", crowd(20, 50), func(d *desk) { d.press("2", "pgdown", "pgdown", "pgdown") }},
	{"filter", normal(), func(d *desk) { d.press("2", "/", "us- ready") }},
	{"focus", normal(), func(d *desk) { d.press("2", "tab", "j", "j") }},
	{"confirm", ownMachines(), func(d *desk) { d.press("2", "j", "j", "j", "space", "space", "x") }},
	{"details", normal(), func(d *desk) { d.run(d.press("2", "j", "enter")) }},
	{"help", normal(), func(d *desk) { d.press("?") }},
	{"connecting", normal(), nil},
}

func TestGoldenFrames(t *testing.T) {
	testkit.NotUnderRace(t, "draws frames in one goroutine")
	for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 60}} {
		for _, sc := range scenes {
			name := fmt.Sprintf("%s-%dx%d", sc.name, size[0], size[1])
			t.Run(name, func(t *testing.T) {
				d := newDesk(t, size[0], size[1], sc.snapshot)
				if sc.act != nil {
					watch(d, sc.snapshot)
					sc.act(d)
				}
				golden(t, name, d.frame())
			})
		}
	}
}

func TestGoldenText(t *testing.T) {
	plain, ascii := mustTheme(NewTheme(ThemePlain, false)), mustTheme(NewTheme(ThemePlain, true))
	golden(t, "once", Render(normal(), nil, 0, 0, plain))
	golden(t, "once-ascii-80", Render(normal(), nil, 80, 0, ascii))
	golden(t, "once-empty", Render(&telemetry.Snapshot{At: noon, Service: "chat"}, nil, 0, 0, plain))
}

func TestASCIIFramesAreASCII(t *testing.T) {
	for _, s := range []*telemetry.Snapshot{normal(), hostile()} {
		if frame := Render(s, s, 100, 40, mustTheme(NewTheme(ThemePlain, true))); !isASCII(frame) {
			t.Errorf("not ASCII:\n%s", frame)
		}
	}
	d := newDesk(t, 120, 60, hostile())
	d.model.screen.theme = mustTheme(NewTheme(ThemePlain, true))
	watch(d, hostile())
	for _, keys := range []string{"j", "?", "?", "/é", "tab"} {
		d.press(keys)
		if !isASCII(d.frame()) {
			t.Errorf("%s: not ASCII:\n%s", keys, d.frame())
		}
	}
}

func isASCII(s string) bool {
	for _, r := range s {
		if r > '~' {
			return false
		}
	}
	return true
}

func TestUnknownIsNeverZero(t *testing.T) {
	s := &telemetry.Snapshot{At: noon, Service: "chat", Regions: []telemetry.RegionSnapshot{{
		Name: "local/us", Replicas: []telemetry.ReplicaSnapshot{{ID: "us-a", Outstanding: 7, State: "READY"}},
	}}}
	golden(t, "unknown", Render(s, nil, 200, 20, mustTheme(NewTheme(ThemePlain, false))))
}

func TestNumbersAreNeverTruncated(t *testing.T) {
	for _, w := range []int{60, 80, 100, 120, 200} {
		frame := Render(crowd(2, 1200), nil, w, 10, mustTheme(NewTheme(ThemePlain, false)))
		if !strings.Contains(frame, "1200/1200") || strings.Contains(frame, "/…") {
			t.Errorf("%d wide: a truncated number:\n%s", w, frame)
		}
	}
}

func TestEverySizeFits(t *testing.T) {
	snapshots := map[string]*telemetry.Snapshot{
		"normal": normal(), "empty": {}, "hostile": hostile(), "crowd": crowd(12, 30),
	}
	theme := mustTheme(NewTheme(ThemeDark, false))
	for name, s := range snapshots {
		for _, w := range []int{1, 2, 20, 33, 40, 60, 79, 80, 100, 110, 120, 151, 200, 300, 400} {
			for _, h := range []int{1, 2, 5, 7, 9, 10, 15, 17, 24, 30, 40, 60, 100, 120} {
				t.Run(fmt.Sprintf("%s-%dx%d", name, w, h), func(t *testing.T) {
					checkFrame(t, Render(s, s, w, h, theme), w, h)
				})
			}
		}
	}
}

func TestEverySizeFitsWhileInUse(t *testing.T) {
	d := newDesk(t, 80, 24, hostile())
	watch(d, hostile())
	for _, keys := range []string{"", "j", "G", "tab", "?", "?", "/界界界界界界界界界界界界界"} {
		d.press(keys)
		for _, w := range []int{1, 20, 37, 60, 80, 133, 400} {
			for _, h := range []int{1, 5, 6, 12, 18, 33, 120} {
				d.model.screen.width, d.model.screen.height = w, h
				d.send(nil)
				if c := d.model.View().Cursor; c != nil && (c.X >= w || c.Y >= h) {
					t.Errorf("%dx%d: the cursor is outside the screen, at %d,%d", w, h, c.X, c.Y)
				}
			}
		}
	}
}
