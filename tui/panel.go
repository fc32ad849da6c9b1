package tui

import (
	"strings"
)

// panelKind is what a panel shows.
type panelKind int

// The kinds of panels.
const (
	noPanel    panelKind = iota
	panelText            // made from what the screen knows
	panelSpec            // service.yaml
	panelLogs            // the last lines of a process
	panelStory           // all about a request
)

// panel is text in front of a view: it scrolls, and is narrowed by the filter.
type panel struct {
	kind   panelKind
	title  string
	id     string // of what it shows
	lines  []string
	offset int
	filter string
	err    string
	// waiting says that nothing has come yet; tail, that it stays at the end.
	waiting bool
	tail    bool
}

// open reports whether there is a panel in front.
func (p *panel) open() bool { return p.kind != noPanel }

// take shows text that came.
func (p *panel) take(text string, err error) {
	p.waiting, p.err = false, ""
	if err != nil {
		p.err = briefly(err)
		return
	}
	p.lines = strings.Split(strings.TrimRight(text, "\n"), "\n")
}

// passing is the lines that pass the filter.
func (p *panel) passing() []string {
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

// scroll moves by n lines in a window of so many; the end of what grows is followed.
func (p *panel) scroll(n, room int) {
	most := max(len(p.passing())-room, 0)
	p.offset = min(max(min(p.offset, most)+n, 0), most)
	if n != 0 {
		p.tail = p.kind == panelLogs && p.offset == most
	}
	if p.tail {
		p.offset = most
	}
}

// Render draws the title and the lines in sight in h lines.
func (p *panel) Render(t *Theme, w, h int) []string {
	if h <= 0 {
		return nil
	}
	title := t.text(p.title)
	lines := p.passing()
	if len(lines) > h-1 {
		title += "  " + position(p.offset, h-1, len(lines))
	}
	out := []string{t.heading.over(t.cut(title, w))}
	switch {
	case p.err != "":
		out = append(out, t.bad.over(t.cut(t.text(p.err), w)))
	case p.waiting:
		out = append(out, t.muted.over(t.cut("asking "+t.glyphs.ellipsis, w)))
	case len(lines) == 0:
		out = append(out, t.muted.over(t.cut("nothing to show", w)))
	}
	out = out[:min(len(out), h)]
	for i := p.offset; i < len(lines) && len(out) < h; i++ {
		out = append(out, t.cut(t.text(lines[i]), w))
	}
	return out
}

// position says which lines of how many are in sight.
func position(offset, room, n int) string {
	last := min(offset+room, n)
	return "lines " + count(int64(min(offset+1, last))) + "-" + count(int64(last)) + " of " + count(int64(n))
}
