package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"sync"

	"golang.org/x/term"

	"skyserve/internal/printable"
)

// painter colours what commands print on a terminal: states, the severity of messages, and changes. Colour is never
// the only signal: it marks words and signs that are there without it.
type painter struct {
	file *os.File
	mu   sync.Mutex
	off  bool
}

// newPainter returns a writer that colours text if w is a terminal; else w.
func newPainter(w io.Writer) io.Writer {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return w
	}
	return &painter{file: f}
}

// disableColour makes a command's writer print without colours.
func disableColour(w io.Writer) {
	if p, ok := printable.Unwrap(w).(*painter); ok {
		p.mu.Lock()
		p.off = true
		p.mu.Unlock()
	}
}

// Write writes text with colours. What has escape codes already is written as it is.
func (p *painter) Write(b []byte) (int, error) {
	p.mu.Lock()
	off := p.off || os.Getenv("NO_COLOR") != "" // the configuration file sets it too
	p.mu.Unlock()
	if off || bytes.ContainsRune(b, 0x1b) {
		return p.file.Write(b)
	}
	if _, err := p.file.Write(paintText(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// The colours, as codes of the terminal's own palette.
const (
	colourRed    = "\x1b[31m"
	colourGreen  = "\x1b[32m"
	colourYellow = "\x1b[33m"
	colourDim    = "\x1b[2m"
	colourNone   = "\x1b[0m"
)

// painted are the texts that have a colour, in the order in which they are looked for. The first group is coloured.
var painted = []struct {
	text   *regexp.Regexp
	colour string
}{
	{regexp.MustCompile(`(?m)^(error:|critical:|FAIL\b)`), colourRed},
	{regexp.MustCompile(`(?m)^(warning:|problem:|incomplete:|warn\b)`), colourYellow},
	{regexp.MustCompile(`(?m)^(hint:.*)$`), colourDim},
	{regexp.MustCompile(`(?m)\b(NOT_READY|FAILED|UNREACHABLE|INTERRUPTED|LOST|DOWN)\b`), colourRed},
	{regexp.MustCompile(`(?m)\b(STARTING|PROVISIONING|PENDING|DRAINING|SHUTTING_DOWN|DEGRADED|UNKNOWN)\b`), colourYellow},
	{regexp.MustCompile(`(?m)(?:^|[^_A-Z])(READY)\b`), colourGreen},
	{regexp.MustCompile(`(?m): (ok)$`), colourGreen},
	{regexp.MustCompile(`(?m)^ok\b`), colourGreen},
	{regexp.MustCompile(`(?m)^ *(\+) `), colourGreen},
	{regexp.MustCompile(`(?m)^ *(-) [a-z]`), colourRed},
	{regexp.MustCompile(`(?m)^ *(~) `), colourYellow},
	{regexp.MustCompile(`  (\+[1-9][0-9]*)\b`), colourGreen},
	{regexp.MustCompile(`  (-[1-9][0-9]*)\b`), colourRed},
}

// paintText returns a text with colours.
func paintText(text []byte) []byte {
	for _, p := range painted {
		matches := p.text.FindAllSubmatchIndex(text, -1)
		for i := len(matches) - 1; i >= 0; i-- {
			m := matches[i]
			from, to := m[0], m[1]
			if len(m) > 2 {
				from, to = m[2], m[3]
			}
			text = bytes.Join([][]byte{text[:from], []byte(p.colour), text[from:to], []byte(colourNone), text[to:]}, nil)
		}
	}
	return text
}
