package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"skyserve/internal/printable"
)

// Verbs write to cmd.OutOrStdout and cmd.ErrOrStderr, which printable.Writers stand in
// front of: what they print does nothing to a terminal, wherever it is from. The
// functions of this file are the only way around.

// clearScreen moves the cursor home and clears what is below it.
const clearScreen = "\x1b[H\x1b[J"

// clearLine moves the cursor to the line's beginning and clears the line.
const clearLine = "\r\x1b[K"

// fileOf is the file that w writes to; nil when that is none.
func fileOf(w io.Writer) *os.File {
	f, _ := printable.Unwrap(w).(*os.File)
	return f
}

// isTerminal tells whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f := fileOf(w)
	return f != nil && term.IsTerminal(int(f.Fd()))
}

// redrawLine writes a line of progress over the last one on a terminal; "" takes the
// last one away.
func redrawLine(terminal io.Writer, text string) {
	fmt.Fprint(printable.Raw(terminal), clearLine, printable.Line(text))
}

// redrawScreen writes text over what a terminal shows.
func redrawScreen(terminal io.Writer, text string) error {
	_, err := io.WriteString(printable.Raw(terminal), clearScreen+printable.Text(text))
	return err
}

// unguarded is w without what stands in front of it, for what is no text (an image) or
// is styled by us, with text of others in it made harmless before.
func unguarded(w io.Writer) io.Writer {
	if f := fileOf(w); f != nil {
		return f // for libraries that ask what a file can show
	}
	return printable.Raw(w)
}
