package tui

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// panelKind is the kind of text in a panel.
type panelKind int

// The kinds of panels.
const (
	noPanel          panelKind = iota
	panelText                  // generated from the snapshot
	panelReplica               // the details of a replica, live
	panelSpec                  // service.yaml
	panelLogs                  // the last lines of a log
	panelExplanation           // the routing of a request
)

// panel is text shown over a view. It scrolls and can be filtered.
type panel struct {
	kind   panelKind
	title  string
	id     string // of the request, replica or balancer
	lines  []string
	width  int // of the screen; longer lines continue on the next line
	offset int // in lines of the screen
	filter string
	err    string
	// loading is true until the text is loaded; follow keeps the end of the text in view.
	loading bool
	follow  bool
}

// open reports whether the panel is open.
func (p *panel) open() bool { return p.kind != noPanel }

// setText sets the text or the error of a fetch.
func (p *panel) setText(text string, err error) {
	p.loading, p.err = false, ""
	if err != nil {
		p.err = shortError(err)
		return
	}
	p.lines = nil
	if text = strings.TrimRight(text, "\n"); text != "" {
		p.lines = strings.Split(text, "\n")
	}
}

// matchingLines returns the lines that match the filter.
func (p *panel) matchingLines() []string {
	f := parseFilter(p.filter)
	if len(f) == 0 {
		return p.lines
	}
	var lines []string
	for _, l := range p.lines {
		if f.matches(l) {
			lines = append(lines, l)
		}
	}
	return lines
}

// screenLines returns the matching lines as lines of the screen.
func (p *panel) screenLines() []string {
	var lines []string
	for _, l := range p.matchingLines() {
		if l = clean(l); p.width <= 0 || width(l) <= p.width {
			lines = append(lines, l)
			continue
		}
		lines = append(lines, strings.Split(ansi.Wrap(l, p.width, ""), "\n")...)
	}
	return lines
}

// scroll moves by n lines in a window of height lines. A log at its end follows new lines.
func (p *panel) scroll(n, height int) {
	maxOffset := max(len(p.screenLines())-height, 0)
	p.offset = min(max(min(p.offset, maxOffset)+n, 0), maxOffset)
	if n != 0 {
		p.follow = p.kind == panelLogs && p.offset == maxOffset
	}
	if p.follow {
		p.offset = maxOffset
	}
}

// Render draws the title and the visible lines in h lines.
func (p *panel) Render(t *Theme, w, h int) []string {
	if h <= 0 {
		return nil
	}
	title := t.text(p.title)
	lines := p.screenLines()
	if len(lines) > h-1 {
		title += "  " + position(p.offset, h-1, len(lines))
	}
	out := []string{t.heading.apply(t.cut(title, w))}
	switch {
	case p.err != "":
		out = append(out, t.bad.apply(t.cut(t.text(p.err), w)))
	case p.loading:
		out = append(out, t.muted.apply(t.cut("loading "+t.glyphs.ellipsis, w)))
	case len(lines) == 0:
		out = append(out, t.muted.apply(t.cut("no lines", w)))
	}
	out = out[:min(len(out), h)]
	for i := p.offset; i < len(lines) && len(out) < h; i++ {
		out = append(out, t.cut(t.text(lines[i]), w))
	}
	return out
}

// position returns which lines of how many are visible.
func position(offset, height, n int) string {
	last := min(offset+height, n)
	return "lines " + count(int64(min(offset+1, last))) + "-" + count(int64(last)) + " of " + count(int64(n))
}
