package tui

import (
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"

	"skyserve/internal/service"
)

// The names of the themes, as --theme takes them.
const (
	ThemeAuto         = "auto"               // the terminal's own 16 colours; a live screen asks for its background and takes dark or light
	ThemeDark         = "dark"               // for dark backgrounds
	ThemeLight        = "light"              // for light backgrounds
	ThemeBlind        = "colour-blind"       // for dark backgrounds: blue, yellow and orange, which all eyes tell apart
	ThemeBlindLight   = "colour-blind-light" // the same for light ones
	ThemeHighContrast = "high-contrast"      // own backgrounds under what matters, nothing faint
	ThemeMono         = "mono"               // bold, faint and reverse, no colour
	ThemePlain        = "plain"              // no escape codes at all: what is no terminal gets this
)

// ThemeNames lists the themes that a person can choose.
func ThemeNames() []string {
	return []string{ThemeAuto, ThemeDark, ThemeLight, ThemeBlind, ThemeBlindLight, ThemeHighContrast, ThemeMono}
}

// Theme is how a frame looks: what it paints with and what it draws with. Make
// one with NewTheme.
type Theme struct {
	// Name is the theme's name.
	Name string

	title, heading, accent, muted, good, warn, bad, selected, alarm paint

	glyphs glyphs
}

// paint turns a style on before a text and off after it. Rendering through
// lipgloss for every cell would cost more than all the rest of a frame.
type paint struct{ on, off string }

// paintOf takes the escape codes of a style from lipgloss.
func paintOf(s lipgloss.Style) paint {
	on, off, _ := strings.Cut(s.Render("x"), "x")
	return paint{on, off}
}

// over paints s.
func (p paint) over(s string) string {
	if s == "" || p.on == "" {
		return s
	}
	return p.on + s + p.off
}

// glyphs are the marks that a terminal can draw.
type glyphs struct {
	full, empty      string
	partial          []string // eighths of a bar's cell, least first
	spark            []string // least first
	rising           []string // parts of a chart's cell, least first
	zero             string   // a chart's bar of nothing
	ellipsis         string
	rule             string
	cursor           string
	up, down         string // trends
	ascending        string
	descending       string
	separator, arrow string
	ready, coming    string // signs of states
	trouble, failed  string
	leaving, lent    string
	mark             string // of a row that an order is for
	changed          string // of a state that is new
	dash             string // of a line across a plot
	shade            string // of an interval in a plot
	heavy            string // of a bar that is one line high
	point            string // of a mean in a plot
	ascii            bool
}

var unicodeGlyphs = glyphs{
	full: "█", empty: "░",
	partial:  []string{"▏", "▎", "▍", "▌", "▋", "▊", "▉"},
	spark:    []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
	rising:   []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
	zero:     "▁",
	ellipsis: "…", rule: "─", cursor: "▸", up: "↑", down: "↓",
	ascending: "▲", descending: "▼", separator: "·", arrow: "→",
	ready: "●", coming: "◌", trouble: "▲", failed: "✗", leaving: "▽", lent: "◇",
	mark: "✓", changed: "*", dash: "╌", shade: "░", heavy: "━", point: "•",
}

var asciiGlyphs = glyphs{
	full: "#", empty: ".",
	spark:    []string{"_", ".", ":", "-", "=", "+", "*", "#"},
	rising:   []string{".", ":", "#"},
	zero:     "_",
	ellipsis: "~", rule: "-", cursor: ">", up: "^", down: "v",
	ascending: "^", descending: "v", separator: "|", arrow: "->",
	ready: "*", coming: "~", trouble: "!", failed: "x", leaving: "v", lent: "o",
	mark: "+", changed: "*", dash: "-", shade: ".", heavy: "=", point: "o",
	ascii: true,
}

// palette is the colours of a theme, as #rrggbb. Foregrounds must stand out
// from the background that the theme is for by 4.5:1 (WCAG 2.2, 1.4.3).
type palette struct{ accent, muted, good, warn, bad, selected, selectedText, alarmText string }

var (
	darkPalette = palette{
		accent: "#79c0ff", muted: "#9198a1", good: "#7ee787", warn: "#e3b341", bad: "#ff7b72",
		selected: "#264f78", selectedText: "#ffffff", alarmText: "#000000",
	}
	lightPalette = palette{
		accent: "#0550ae", muted: "#57606a", good: "#116329", warn: "#7d4e00", bad: "#a40e26",
		selected: "#b6d7fb", selectedText: "#000000", alarmText: "#ffffff",
	}
	// Good and bad are blue against orange, or magenta on light backgrounds, where orange
	// would be brown: never green against red.
	blindPalette = palette{
		accent: "#cc9ee0", muted: "#9aa2ab", good: "#56b4e9", warn: "#f0e442", bad: "#ff9a3c",
		selected: "#264f78", selectedText: "#ffffff", alarmText: "#000000",
	}
	blindLightPalette = palette{
		accent: "#6a2c91", muted: "#57606a", good: "#3344ee", warn: "#665500", bad: "#c00080",
		selected: "#b6d7fb", selectedText: "#000000", alarmText: "#ffffff",
	}
)

// NewTheme returns the theme of that name, drawn with ASCII alone when ascii is
// set. An unknown name is an error.
func NewTheme(name string, ascii bool) (Theme, error) {
	t := Theme{Name: name, glyphs: unicodeGlyphs}
	if ascii {
		t.glyphs = asciiGlyphs
	}
	switch name {
	case ThemeAuto:
		t.useTerminalColours()
	case ThemeDark:
		t.usePalette(darkPalette)
	case ThemeLight:
		t.usePalette(lightPalette)
	case ThemeBlind:
		t.usePalette(blindPalette)
	case ThemeBlindLight:
		t.usePalette(blindLightPalette)
	case ThemeHighContrast:
		t.useHighContrast()
	case ThemeMono:
		t.useAttributes()
	case ThemePlain:
	default:
		return Theme{}, fmt.Errorf("unknown theme %q: want one of %s", name, strings.Join(ThemeNames(), ", "))
	}
	return t, nil
}

// must returns a theme whose name is one of the constants above.
func must(t Theme, err error) Theme {
	if err != nil {
		panic(err)
	}
	return t
}

func (t *Theme) usePalette(p palette) {
	fg := func(c string) lipgloss.Style { return lipgloss.NewStyle().Foreground(lipgloss.Color(c)) }
	t.title = paintOf(fg(p.accent).Bold(true))
	t.heading = paintOf(fg(p.muted).Bold(true))
	t.accent = paintOf(fg(p.accent))
	t.muted = paintOf(fg(p.muted))
	t.good = paintOf(fg(p.good))
	t.warn = paintOf(fg(p.warn))
	t.bad = paintOf(fg(p.bad).Bold(true))
	t.selected = paintOf(fg(p.selectedText).Background(lipgloss.Color(p.selected)))
	t.alarm = paintOf(fg(p.alarmText).Background(lipgloss.Color(p.bad)).Bold(true))
}

// useTerminalColours takes those of the 16 colours that are legible on dark and
// on light backgrounds alike, in whatever shade the terminal's owner gave them.
func (t *Theme) useTerminalColours() {
	base := lipgloss.NewStyle()
	fg := func(c string) lipgloss.Style { return base.Foreground(lipgloss.Color(c)) }
	t.title = paintOf(fg("6").Bold(true))
	t.heading = paintOf(base.Bold(true))
	t.accent = paintOf(fg("6"))
	t.muted = paintOf(base.Faint(true))
	t.good = paintOf(fg("2"))
	t.warn = paintOf(fg("5"))
	t.bad = paintOf(fg("1").Bold(true))
	t.selected = paintOf(base.Reverse(true))
	t.alarm = paintOf(fg("1").Bold(true).Reverse(true))
}

// useHighContrast puts a background of its own under whatever is coloured, so
// that contrast does not depend on the terminal's.
func (t *Theme) useHighContrast() {
	base := lipgloss.NewStyle()
	on := func(fg, bg string) lipgloss.Style {
		return base.Foreground(lipgloss.Color(fg)).Background(lipgloss.Color(bg)).Bold(true)
	}
	t.title = paintOf(base.Bold(true).Reverse(true))
	t.heading = paintOf(base.Bold(true).Underline(true))
	t.accent = paintOf(base.Bold(true))
	t.good = paintOf(base.Bold(true))
	t.warn = paintOf(on("#000000", "#ffff00"))
	t.bad = paintOf(on("#ffffff", "#b00000"))
	t.selected = paintOf(base.Reverse(true).Bold(true))
	t.alarm = t.bad
}

func (t *Theme) useAttributes() {
	base := lipgloss.NewStyle()
	t.title = paintOf(base.Bold(true))
	t.heading = paintOf(base.Bold(true))
	t.accent = paintOf(base.Bold(true))
	t.muted = paintOf(base.Faint(true))
	t.warn = paintOf(base.Bold(true))
	t.bad = paintOf(base.Bold(true))
	t.selected = paintOf(base.Reverse(true))
	t.alarm = paintOf(base.Bold(true).Reverse(true))
}

// Plain is this theme's marks without any escape code.
func (t Theme) Plain() Theme { return Theme{Name: ThemePlain, glyphs: t.glyphs} }

// dimmed is the theme for figures that are no longer true: all in one muted
// voice, but for alarms.
func (t Theme) dimmed() Theme {
	t.title, t.heading, t.accent = t.muted, t.muted, t.muted
	t.good, t.warn, t.bad = t.muted, t.muted, t.muted
	return t
}

// next is the theme after this one in ThemeNames.
func (t Theme) next() Theme {
	names := ThemeNames()
	i := slices.Index(names, t.Name)
	return must(NewTheme(names[(i+1)%len(names)], t.glyphs.ascii))
}

// text makes text of others drawable in this theme.
func (t *Theme) text(s string) string {
	s = clean(s)
	if t.glyphs.ascii {
		return asciiOnly(s)
	}
	return s
}

// cut shortens s to w cells with this theme's ellipsis.
func (t *Theme) cut(s string, w int) string { return cut(s, w, t.glyphs.ellipsis) }

// replicaMark is the sign of a replica's state.
func (g glyphs) replicaMark(s service.ReplicaState) (string, role) {
	switch s {
	case service.StateReady:
		return g.ready, roleGood
	case service.StatePending, service.StateProvisioning, service.StateStarting:
		return g.coming, roleWarn
	case service.StateNotReady:
		return g.trouble, roleBad
	case service.StateDraining, service.StateShuttingDown:
		return g.leaving, roleWarn
	case service.StateDonated:
		return g.lent, roleAccent
	case service.StateFailed, service.StateInterrupted:
		return g.failed, roleBad
	}
	return "?", roleWarn
}
