package tui

import (
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"

	"skyserve/internal/service"
)

// The names of the themes, as accepted by --theme.
const (
	ThemeAuto         = "auto"               // the terminal's 16 colours; a live screen detects the background and uses dark or light
	ThemeDark         = "dark"               // for dark backgrounds
	ThemeLight        = "light"              // for light backgrounds
	ThemeBlind        = "colour-blind"       // for dark backgrounds: blue, yellow and orange, distinguishable with any colour vision
	ThemeBlindLight   = "colour-blind-light" // the same for light backgrounds
	ThemeHighContrast = "high-contrast"      // sets its own background colours, no faint text
	ThemeMono         = "mono"               // bold, faint and reverse, no colour
	ThemePlain        = "plain"              // no escape codes: for output that is not a terminal
)

// ThemeNames lists the themes that a user can choose.
func ThemeNames() []string {
	return []string{ThemeAuto, ThemeDark, ThemeLight, ThemeBlind, ThemeBlindLight, ThemeHighContrast, ThemeMono}
}

// Theme is the colours and symbols of a frame. Create it with NewTheme.
type Theme struct {
	// Name is the theme's name.
	Name string

	title, heading, accent, muted, good, warn, bad, selected, alarm paint

	glyphs glyphs
}

// paint is the escape codes before and after a text. Calling lipgloss for every cell would
// take longer than drawing everything else in a frame.
type paint struct{ on, off string }

// paintOf returns the escape codes of a lipgloss style.
func paintOf(s lipgloss.Style) paint {
	on, off, _ := strings.Cut(s.Render("x"), "x")
	return paint{on, off}
}

// apply returns s between the escape codes.
func (p paint) apply(s string) string {
	if s == "" || p.on == "" {
		return s
	}
	return p.on + s + p.off
}

// glyphs are the symbols that a terminal can draw.
type glyphs struct {
	full, empty       string
	partial           []string // eighths of a bar's cell, smallest first
	spark             []string // smallest first
	vertical          []string // parts of a chart's cell, smallest first
	zero              string   // a chart's bar of value 0
	ellipsis          string
	rule              string
	cursor            string
	up, down          string // trends
	ascending         string
	descending        string
	separator, arrow  string
	ready, starting   string // symbols of states
	warning, failed   string
	draining, donated string
	mark              string // of a marked row
	changed           string // of a changed state
	dash              string // of a line across a plot
	shade             string // of an interval in a plot
	heavy             string // of a horizontal bar
	point             string // of a mean in a plot
	ascii             bool
}

var unicodeGlyphs = glyphs{
	full: "█", empty: "░",
	partial:  []string{"▏", "▎", "▍", "▌", "▋", "▊", "▉"},
	spark:    []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
	vertical: []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
	zero:     "▁",
	ellipsis: "…", rule: "─", cursor: "▸", up: "↑", down: "↓",
	ascending: "▴", descending: "▾", separator: "·", arrow: "→",
	ready: "●", starting: "◌", warning: "▲", failed: "✗", draining: "▽", donated: "◇",
	mark: "✓", changed: "*", dash: "╌", shade: "░", heavy: "━", point: "•",
}

var asciiGlyphs = glyphs{
	full: "#", empty: ".",
	spark:    []string{"_", ".", ":", "-", "=", "+", "*", "#"},
	vertical: []string{".", ":", "#"},
	zero:     "_",
	ellipsis: "~", rule: "-", cursor: ">", up: "^", down: "v",
	ascending: "^", descending: "v", separator: "|", arrow: "->",
	ready: "*", starting: "~", warning: "!", failed: "x", draining: "v", donated: "o",
	mark: "+", changed: "*", dash: "-", shade: ".", heavy: "=", point: "o",
	ascii: true,
}

// palette is the colours of a theme, as #rrggbb. The contrast of foregrounds to the
// background that the theme is for must be at least 4.5:1 (WCAG 2.2, 1.4.3).
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
	// Good and bad are blue and orange, or blue and magenta on light backgrounds, where
	// orange would be brown; never green and red.
	blindPalette = palette{
		accent: "#cc9ee0", muted: "#9aa2ab", good: "#56b4e9", warn: "#f0e442", bad: "#ff9a3c",
		selected: "#264f78", selectedText: "#ffffff", alarmText: "#000000",
	}
	blindLightPalette = palette{
		accent: "#6a2c91", muted: "#57606a", good: "#3344ee", warn: "#665500", bad: "#c00080",
		selected: "#b6d7fb", selectedText: "#000000", alarmText: "#ffffff",
	}
)

// NewTheme returns the theme of that name, with only ASCII symbols if ascii is set. An
// unknown name is an error.
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
		return Theme{}, fmt.Errorf("unknown theme %q: must be one of %s", name, strings.Join(ThemeNames(), ", "))
	}
	return t, nil
}

// mustTheme panics if the name was not one of the constants above.
func mustTheme(t Theme, err error) Theme {
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

// useTerminalColours uses those of the terminal's 16 colours that are legible on both dark
// and light backgrounds.
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

// useHighContrast sets the background of all coloured text, so that its contrast does not
// depend on the terminal.
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

// Plain returns a theme with the same symbols and no escape codes.
func (t Theme) Plain() Theme { return Theme{Name: ThemePlain, glyphs: t.glyphs} }

// dimmed returns the theme for outdated data: everything is muted, except alarms.
func (t Theme) dimmed() Theme {
	t.title, t.heading, t.accent = t.muted, t.muted, t.muted
	t.good, t.warn, t.bad = t.muted, t.muted, t.muted
	return t
}

// next returns the theme after this one in ThemeNames.
func (t Theme) next() Theme {
	names := ThemeNames()
	i := slices.Index(names, t.Name)
	return mustTheme(NewTheme(names[(i+1)%len(names)], t.glyphs.ascii))
}

// text makes text from outside drawable in this theme.
func (t *Theme) text(s string) string {
	s = clean(s)
	if t.glyphs.ascii {
		return asciiOnly(s)
	}
	return s
}

// cut truncates s to w cells with this theme's ellipsis.
func (t *Theme) cut(s string, w int) string { return cut(s, w, t.glyphs.ellipsis) }

// replicaMark returns the symbol of a replica's state.
func (g glyphs) replicaMark(s service.ReplicaState) (string, role) {
	switch s {
	case service.StateReady:
		return g.ready, roleGood
	case service.StatePending, service.StateProvisioning, service.StateStarting:
		return g.starting, roleWarn
	case service.StateNotReady:
		return g.warning, roleBad
	case service.StateDraining, service.StateShuttingDown:
		return g.draining, roleWarn
	case service.StateDonated:
		return g.donated, roleAccent
	case service.StateFailed, service.StateInterrupted:
		return g.failed, roleBad
	}
	return "?", roleWarn
}
