package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// painter is a terminal. It colours cells of tables by the titles of their columns, and the labels of messages. Other
// text is never coloured, whatever it contains. Colour is never the only signal: it marks words and signs that are
// there without it.
type painter struct {
	file *os.File
	out  io.Writer // file, or a buffer whose text is written to it later
	mu   sync.Mutex
	off  bool
}

// newPainter returns a writer that colours cells and labels if w is a terminal; else w.
func newPainter(w io.Writer) io.Writer {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return w
	}
	return &painter{file: f, out: f}
}

// disableColour makes a command's writer print without colours.
func disableColour(w io.Writer) {
	if p, ok := printable.Unwrap(w).(*painter); ok {
		p.mu.Lock()
		p.off = true
		p.mu.Unlock()
	}
}

// buffered returns a painter of the same colours that writes to a buffer.
func (p *painter) buffered(out io.Writer) *painter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &painter{file: p.file, out: out, off: p.off}
}

// Write writes text as it is.
func (p *painter) Write(b []byte) (int, error) { return p.out.Write(b) }

// Columns returns the width of the terminal, which tables fit into; 0 if it is unknown.
func (p *painter) Columns() int {
	if p.file == nil {
		return 0
	}
	return terminalColumns(p.file, 0)
}

// PaintCell returns a cell in the colour that its column gives it.
func (p *painter) PaintCell(title, cell string) string {
	if colours := cellColours[title]; colours != nil {
		return p.paint(colours(cell), cell)
	}
	return cell
}

// paint returns a text in a colour; unchanged if colours are off or the text has none.
func (p *painter) paint(colour, text string) string {
	p.mu.Lock()
	off := p.off || os.Getenv("NO_COLOR") != ""
	p.mu.Unlock()
	if off || colour == "" {
		return text
	}
	return colour + text + colourNone
}

// The colours, as codes of the terminal's own palette.
const (
	colourRed    = "\x1b[31m"
	colourGreen  = "\x1b[32m"
	colourYellow = "\x1b[33m"
	colourDim    = "\x1b[2m"
	colourNone   = "\x1b[0m"
)

// cellColours returns the colour of a cell by the title of its column; empty = none.
var cellColours = map[string]func(cell string) string{
	titleState:  func(state string) string { return stateColours[state] },
	titleChange: changeColour,
	titleResult: func(result string) string { return resultColours[result] },
}

// Titles of the columns whose cells have a colour.
const (
	titleState  = "STATE"
	titleChange = "CHANGE" // a difference, or a line of a diff
	titleResult = "RESULT" // of a check
)

// stateColours are the colours of the states of replicas, balancers and services.
var stateColours = map[string]string{
	string(service.StateReady):        colourGreen,
	string(service.StatePending):      colourYellow,
	string(service.StateProvisioning): colourYellow,
	string(service.StateStarting):     colourYellow,
	string(service.StateDraining):     colourYellow,
	string(service.StateShuttingDown): colourYellow,
	string(service.StateNotReady):     colourRed,
	string(service.StateInterrupted):  colourRed,
	string(service.StateFailed):       colourRed,
	string(service.StateUnreachable):  colourRed,
	string(deploy.StateDegraded):      colourYellow,
	string(deploy.StateUnknown):       colourYellow,
	string(deploy.StateDown):          colourRed,
}

// changeColour returns the colour of a change, which begins with its sign.
func changeColour(change string) string {
	switch {
	case strings.HasPrefix(change, "+") && strings.Trim(change, "+0") != "":
		return colourGreen
	case strings.HasPrefix(change, "-") && strings.Trim(change, "-0") != "":
		return colourRed
	case strings.HasPrefix(change, "~"):
		return colourYellow
	}
	return ""
}

// Results of checks.
const (
	resultOK   = "ok"
	resultWarn = "warn"
	resultFail = "FAIL"
)

var resultColours = map[string]string{resultOK: colourGreen, resultWarn: colourYellow, resultFail: colourRed}

// Labels of messages.
const (
	labelError      = "error"
	labelWarning    = "warning"
	labelProblem    = "problem"
	labelIncomplete = "incomplete"
	labelHint       = "hint"
)

// labelColours are the colours of the labels of messages.
var labelColours = map[string]string{
	labelError: colourRed, string(telemetry.SeverityCritical): colourRed,
	labelWarning: colourYellow, labelProblem: colourYellow, labelIncomplete: colourYellow,
	labelHint: colourDim,
}

// printMessage prints a message in a line after its label, which has a colour on a terminal.
func printMessage(w io.Writer, label, format string, args ...any) {
	text := printable.Text(fmt.Sprintf(format, args...))
	_, _ = io.WriteString(printable.Raw(w), paintOn(w, labelColours[label], label+":")+" "+text+"\n") // the screen: an error could not be reported
}

// printValid prints that a file is valid.
func printValid(w io.Writer, file string) error {
	_, err := io.WriteString(printable.Raw(w), printable.Line(file)+": "+paintOn(w, resultColours[resultOK], resultOK)+"\n")
	return err
}

// paintOn returns a text in a colour if w is a terminal with colours.
func paintOn(w io.Writer, colour, text string) string {
	if p, ok := printable.Unwrap(w).(*painter); ok {
		return p.paint(colour, text)
	}
	return text
}
