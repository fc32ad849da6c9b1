package tui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"golang.org/x/term"
)

// Run shows the dashboard on a terminal until the user quits (nil) or ctx ends (its
// error). Both files must be terminals: see Interactive.
func Run(ctx context.Context, cfg Config, in io.Reader, out io.Writer, options ...tea.ProgramOption) error {
	options = append([]tea.ProgramOption{
		tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler(), tea.WithFilter(withDefaultSize),
	}, options...)
	_, err := tea.NewProgram(New(ctx, cfg), options...).Run()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, tea.ErrInterrupted):
		return fmt.Errorf("running the dashboard: %w", err)
	}
	return nil
}

// withDefaultSize assumes 80 x 24 for a terminal that does not report its size, such as a serial
// line or the terminal of script(1).
func withDefaultSize(_ tea.Model, msg tea.Msg) tea.Msg {
	if size, ok := msg.(tea.WindowSizeMsg); ok {
		return tea.WindowSizeMsg{Width: cmp.Or(size.Width, 80), Height: cmp.Or(size.Height, 24)}
	}
	return msg
}

// Interactive reports whether a dashboard can run: both files are terminals,
// and the terminal can move its cursor.
func Interactive(in, out *os.File, getenv func(string) string) bool {
	return IsTerminal(in) && IsTerminal(out) && getenv("TERM") != "dumb"
}

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Columns returns the width of the terminal f, 0 when f is not a terminal.
func Columns(f *os.File) int {
	w, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return w
}

// PrintFrame writes a frame and a newline, in the colours that w supports.
func PrintFrame(w io.Writer, frame string) error {
	if _, err := lipgloss.Fprintln(w, frame); err != nil {
		return fmt.Errorf("writing the frame: %w", err)
	}
	return nil
}

// UTF8Locale reports whether the locale's encoding is UTF-8, by the environment variables
// of POSIX in their order of precedence.
func UTF8Locale(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}
