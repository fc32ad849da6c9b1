package tui

import (
	"flag"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Cells of a picture, in pixels, and its edge.
const (
	cellWidth, cellHeight, edge = 8.4, 18.0, 12.0
	inkColour, paperColour      = "#e6edf3", "#0d1117"
)

// style is the style of a text after colour codes.
type style struct {
	ink, paper string
	bold       bool
}

var trueColour = regexp.MustCompile(`^([34])8;2;(\d+);(\d+);(\d+)`)

// after returns the style after a code: 24-bit colours, bold, and resets.
func (s style) after(code string) style {
	if code == "" {
		return style{}
	}
	for code != "" {
		if m := trueColour.FindStringSubmatch(code); m != nil {
			var rgb [3]int
			for i := range rgb {
				rgb[i], _ = strconv.Atoi(m[2+i])
			}
			colour := fmt.Sprintf("#%02x%02x%02x", rgb[0], rgb[1], rgb[2])
			if m[1] == "3" {
				s.ink = colour
			} else {
				s.paper = colour
			}
			code = strings.TrimPrefix(strings.TrimPrefix(code, m[0]), ";")
			continue
		}
		var n string
		n, code, _ = strings.Cut(code, ";")
		switch n {
		case "0":
			s = style{}
		case "1":
			s.bold = true
		case "22":
			s.bold = false
		case "39":
			s.ink = ""
		case "49":
			s.paper = ""
		}
	}
	return s
}

// svg draws a frame of the dark theme as a picture. Each run of text is stretched to
// its cells, so that columns are aligned with any font.
func svg(frame string) string {
	var b strings.Builder
	lines := strings.Split(frame, "\n")
	columns := 0
	for _, l := range lines {
		columns = max(columns, ansi.StringWidth(l))
	}
	w, h := float64(columns)*cellWidth+2*edge, float64(len(lines))*cellHeight+2*edge
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" shape-rendering="crispEdges">`+"\n", w, h)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", paperColour)
	for i, l := range lines {
		var s style
		at := 0
		for l != "" {
			if n := escapeLen(l); n > 0 {
				s = s.after(l[2 : n-1])
				l = l[n:]
				continue
			}
			text, _, more := strings.Cut(l, "\x1b")
			l = l[len(text):]
			if !more {
				l = ""
			}
			s.draw(&b, text, at, i)
			at += width(text)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw draws a run of text at a cell; blanks are drawn only where they have a colour.
func (s style) draw(b *strings.Builder, text string, column, line int) {
	x, y := edge+float64(column)*cellWidth, edge+float64(line)*cellHeight
	if s.paper != "" {
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, float64(width(text))*cellWidth, cellHeight, s.paper)
	}
	for text != "" {
		blanks := len(text) - len(strings.TrimLeft(text, " "))
		x += float64(blanks) * cellWidth
		text = text[blanks:]
		run := text
		if i := strings.Index(text, "  "); i >= 0 {
			run = text[:i]
		}
		if n := s.block(b, run, x, y); n > 0 {
			x += float64(width(run[:n])) * cellWidth
			text = text[n:]
			continue
		}
		if i := strings.IndexAny(run, blocks+"░"); i > 0 {
			run = run[:i]
		}
		text = text[len(run):]
		if strings.TrimSpace(run) == "" {
			continue
		}
		weight := ""
		if s.bold {
			weight = ` font-weight="bold"`
		}
		cells := float64(width(run)) * cellWidth
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" textLength="%.1f" lengthAdjust="spacingAndGlyphs" fill="%s"%s xml:space="preserve">%s</text>`+"\n", x, y+cellHeight-4.5, cells, s.colour(), weight, html.EscapeString(run))
		x += cells
	}
}

// colour returns the colour of a text of the style.
func (s style) colour() string {
	if s.ink == "" {
		return inkColour
	}
	return s.ink
}

// blocks fill cells from below, then from the left, in eighths.
const blocks = "▁▂▃▄▅▆▇█▏▎▍▌▋▊▉"

// block draws the leading equal blocks or shades of a run as one rectangle, because fonts
// leave gaps between them. It returns their length.
func (s style) block(b *strings.Builder, run string, x, y float64) int {
	first, n := utf8.DecodeRuneInString(run)
	at, opacity := slices.Index([]rune(blocks), first), 1.0
	if first == '░' {
		at, opacity = 7, 0.25
	}
	if at < 0 {
		return 0
	}
	cells := 1
	for at < 8 && strings.HasPrefix(run[n:], string(first)) {
		n += utf8.RuneLen(first)
		cells++
	}
	w, h := float64(cells)*cellWidth, cellHeight*float64(at+1)/8
	if at >= 8 {
		w, h = cellWidth*float64(at-7)/8, cellHeight
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%.2f" width="%.1f" height="%.2f" fill="%s" opacity="%g"/>`+"\n", x, y+cellHeight-h, w, h, s.colour(), opacity)
	return n
}

var pictures = flag.String("pictures", "", "the directory for pictures of all scenes at 80x24 and 120x40")

// Draws every scene, for people who look at them: go test ./tui -run TestDrawScenes -pictures DIR, then rsvg-convert.
func TestDrawScenes(t *testing.T) {
	if *pictures == "" {
		t.Skip("draws pictures with -pictures DIR")
	}
	for _, size := range [][2]int{{80, 24}, {120, 40}} {
		for _, sc := range scenes {
			d := newDesk(t, size[0], size[1], sc.snapshot)
			if sc.act != nil {
				watch(d, sc.snapshot)
				sc.act(d)
			}
			d.model.screen.theme = mustTheme(NewTheme(ThemeDark, false))
			d.send(nil)
			file := filepath.Join(*pictures, fmt.Sprintf("%s-%dx%d.svg", sc.name, size[0], size[1]))
			if err := os.WriteFile(file, []byte(svg(d.frame())), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The dashboard draws the pictures of the documentation: go test ./tui -run Pictures
// -update rewrites them.
func TestPicturesAreCurrent(t *testing.T) {
	for _, sc := range scenes {
		if !slices.Contains(viewNames[:], sc.name) {
			continue
		}
		d := newDesk(t, 120, 34, sc.snapshot)
		watch(d, sc.snapshot)
		sc.act(d)
		d.model.screen.theme = mustTheme(NewTheme(ThemeDark, false))
		d.send(nil)
		file := filepath.Join("..", "docs", "pictures", "top-"+sc.name+".svg")
		got := svg(d.frame())
		if *update {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from the dashboard; rewrite it with -update", file)
		}
	}
}
