package tui

import (
	"fmt"
	"strings"
	"testing"

	"skyserve/internal/testkit"

	"github.com/charmbracelet/x/ansi"
)

// roles are the paints of a theme by name.
func (t *Theme) roles() []struct {
	name  string
	paint *paint
} {
	return []struct {
		name  string
		paint *paint
	}{
		{"title", &t.title},
		{"heading", &t.heading},
		{"accent", &t.accent},
		{"muted", &t.muted},
		{"good", &t.good},
		{"warn", &t.warn},
		{"bad", &t.bad},
		{"selected", &t.selected},
		{"alarm", &t.alarm},
	}
}

// marked is a theme whose codes are the names of the roles: its frames show the role of
// every text, for all themes at once.
func marked() Theme {
	t := mustTheme(NewTheme(ThemePlain, false))
	for i, r := range t.roles() {
		*r.paint = paint{fmt.Sprintf("\x1b[90%dm", i), fmt.Sprintf("\x1b[80%dm", i)}
	}
	return t
}

// in replaces the codes of a marked frame by other texts, such as the codes of a theme.
func in(frame string, as func(i int) paint) string {
	t := marked()
	var pairs []string
	for i, r := range t.roles() {
		p := as(i)
		pairs = append(pairs, r.paint.on, p.on, r.paint.off, p.off)
	}
	return strings.NewReplacer(pairs...).Replace(frame)
}

// Frames of different themes differ only in their colours, and the golden frames contain
// the role of every colour.
func TestGoldenFramesInEveryTheme(t *testing.T) {
	testkit.NotUnderRace(t, "draws frames in one goroutine")
	themes := ThemeNames()
	for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 60}} {
		for _, sc := range scenes[:views+1] { // all views; batches has two scenes
			name := fmt.Sprintf("%s-%dx%d", sc.name, size[0], size[1])
			t.Run(name, func(t *testing.T) {
				d := newDesk(t, size[0], size[1], sc.snapshot)
				watch(d, sc.snapshot)
				sc.act(d)
				plain := d.frame()
				d.model.screen.theme = marked()
				d.send(nil)
				frame := d.frame()
				if got := ansi.Strip(frame); got != plain {
					t.Errorf("colours change the position of the text; got:\n%s\nwant:\n%s", got, plain)
				}
				readable := marked()
				golden(t, "painted/"+name, in(frame, func(i int) paint { return paint{"{" + readable.roles()[i].name + ":", "}"} }))
				for _, name := range themes {
					theme := mustTheme(NewTheme(name, false))
					d.model.screen.theme = theme
					d.send(nil)
					if got, want := d.frame(), in(frame, func(i int) paint { return *theme.roles()[i].paint }); got != want {
						t.Errorf("theme %s has other colours; got:\n%s\nwant:\n%s", name, got, want)
					}
				}
			})
		}
	}
}

// A golden file has the codes of every role in every theme.
func TestGoldenThemes(t *testing.T) {
	var b strings.Builder
	for _, name := range ThemeNames() {
		theme := mustTheme(NewTheme(name, false))
		fmt.Fprintf(&b, "%s\n", name)
		for _, r := range theme.roles() {
			fmt.Fprintf(&b, "  %-9s%q %q\n", r.name, r.paint.on, r.paint.off)
		}
	}
	golden(t, "themes", b.String())
}
