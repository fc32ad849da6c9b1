package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"skyserve/internal/printable"
)

// Commands write to cmd.OutOrStdout and cmd.ErrOrStderr, which are printable.Writers: these remove
// escape sequences from everything printed, whatever its origin. Only functions of this file and paint.go
// bypass them.

// clearScreen moves the cursor home and clears the screen below it.
const clearScreen = "\x1b[H\x1b[J"

// clearLine moves the cursor to the beginning of the line and clears the line.
const clearLine = "\r\x1b[K"

// fileOf returns the file that w writes to; nil if it is not a file.
func fileOf(w io.Writer) *os.File {
	switch below := printable.Unwrap(w).(type) {
	case *os.File:
		return below
	case *painter:
		return below.file
	}
	return nil
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f := fileOf(w)
	return f != nil && term.IsTerminal(int(f.Fd()))
}

// redrawLine replaces the last progress line on a terminal; an empty text clears it.
func redrawLine(terminal io.Writer, text string) {
	fmt.Fprint(printable.Raw(terminal), clearLine, oneRow(terminal, text))
}

// oneRow cuts a text at the width of a terminal: of a longer one, only the last row could be replaced.
func oneRow(terminal io.Writer, text string) string {
	row := []rune(printable.Line(text))
	width := terminalColumns(terminal, defaultColumns) - 1 // a character in the last column may wrap
	return string(row[:min(len(row), width)])
}

// terminalBlock is a group of rows at the end of a terminal's output that is redrawn in place.
type terminalBlock struct {
	w    io.Writer
	rows []string // that are drawn
}

// newTerminalBlock returns a block at the end of a terminal; nil if w is none.
func newTerminalBlock(w io.Writer) *terminalBlock {
	if !isTerminal(w) {
		return nil
	}
	return &terminalBlock{w: w}
}

// draw replaces the rows, which are cut at the width of the terminal.
func (b *terminalBlock) draw(rows []string) {
	var out strings.Builder
	if len(b.rows) > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\x1b[J", len(b.rows))
	}
	for _, row := range rows {
		out.WriteString(oneRow(b.w, row) + "\n")
	}
	b.rows = rows
	_, _ = io.WriteString(printable.Raw(b.w), out.String()) // the screen: an error could not be reported
}

// defaultColumns is the width of a terminal that does not report it.
const defaultColumns = 80

// terminalColumns returns the width of a terminal in columns, or the usual width if it is unknown.
func terminalColumns(w io.Writer, usual int) int {
	if f := fileOf(w); f != nil {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return usual
}

// redrawScreen replaces the content of a terminal by what print prints.
func redrawScreen(terminal io.Writer, print func(io.Writer) error) error {
	var text bytes.Buffer
	below := io.Writer(&text)
	if p, ok := printable.Unwrap(terminal).(*painter); ok {
		below = p.buffered(&text)
	}
	w := printable.NewWriter(below)
	if err := errors.Join(print(w), w.Flush()); err != nil {
		return err
	}
	_, err := io.WriteString(printable.Raw(terminal), clearScreen+text.String())
	return err
}

// rawWriter returns the writer below w's printable.Writer, for images and for text with our own
// styles in which foreign text is sanitised already.
func rawWriter(w io.Writer) io.Writer {
	if f := fileOf(w); f != nil {
		return f // libraries query the terminal's capabilities
	}
	return printable.Raw(w)
}
