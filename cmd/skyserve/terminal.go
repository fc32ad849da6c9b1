package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"skyserve/internal/printable"
)

// Commands write to cmd.OutOrStdout and cmd.ErrOrStderr, which are printable.Writers: these remove
// escape sequences from everything printed, whatever its origin. Only the functions of this file
// bypass them.

// clearScreen moves the cursor home and clears the screen below it.
const clearScreen = "\x1b[H\x1b[J"

// clearLine moves the cursor to the beginning of the line and clears the line.
const clearLine = "\r\x1b[K"

// fileOf returns the file that w writes to; nil if it is not a file.
func fileOf(w io.Writer) *os.File {
	f, _ := printable.Unwrap(w).(*os.File)
	return f
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f := fileOf(w)
	return f != nil && term.IsTerminal(int(f.Fd()))
}

// redrawLine replaces the last progress line on a terminal; an empty text clears it.
func redrawLine(terminal io.Writer, text string) {
	fmt.Fprint(printable.Raw(terminal), clearLine, printable.Line(text))
}

// redrawScreen replaces the content of a terminal by text.
func redrawScreen(terminal io.Writer, text string) error {
	_, err := io.WriteString(printable.Raw(terminal), clearScreen+printable.Text(text))
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
