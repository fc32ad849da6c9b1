package main

import (
	"context"
	"os"

	"skyserve/tui"
)

// interruptibleInput is a file, usually standard input, whose reads end when a command is interrupted. A signal that the
// process handles does not end a read from a terminal.
type interruptibleInput struct {
	ctx  context.Context
	file *os.File
}

// IsTerminal reports whether a person can confirm.
func (in interruptibleInput) IsTerminal() bool { return tui.IsTerminal(in.file) }

// Read reads from the file. The error after an interruption is that of the context; a read that has begun then goes on
// until the process ends, and its result is lost.
func (in interruptibleInput) Read(b []byte) (int, error) {
	type result struct {
		read []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		own := make([]byte, len(b)) // the caller may use b again while the read goes on
		n, err := in.file.Read(own)
		done <- result{own[:n], err}
	}()
	select {
	case <-in.ctx.Done():
		return 0, in.ctx.Err()
	case r := <-done:
		return copy(b, r.read), r.err
	}
}
