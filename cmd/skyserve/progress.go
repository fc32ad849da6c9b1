package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// When the progress of jobs is drawn first, and how often.
const (
	progressAfter = 2 * time.Second
	redrawEvery   = 200 * time.Millisecond
)

// drawProgress replaces the progress line of a terminal: a bar with what is done of all, such as runs. share is
// from 0 to 1.
func drawProgress(terminal io.Writer, label string, share float64, done, all int, what string) {
	redrawLine(terminal, fmt.Sprintf("%s %s %3.0f %%, %d of %d %s", label, bar(share), 100*share, done, all, what))
}

// countProgress returns a function that draws how much of a work is done, and one that clears the line; both do
// nothing if w is no terminal.
func countProgress(w io.Writer, label, what string) (show func(done, all int), clear func()) {
	if !isTerminal(w) {
		return func(int, int) {}, func() {}
	}
	return func(done, all int) { drawProgress(w, label, float64(done)/float64(max(all, 1)), done, all, what) }, func() { redrawLine(w, "") }
}

// bar draws a share (0..1) as a bar of 20 characters.
func bar(share float64) string {
	const places = 20
	full := min(int(share*places), places)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", places-full) + "]"
}

// progress draws how many jobs are done, if they take long and the output is a terminal.
type progress struct {
	w           io.Writer
	label       string
	terminal    bool
	timer       *time.Ticker
	done, total int
	drawn       bool
}

func newProgress(w io.Writer, what string) *progress {
	return &progress{w: w, label: what, terminal: isTerminal(w), timer: time.NewTicker(progressAfter)}
}

func (p *progress) tick() <-chan time.Time { return p.timer.C }

func (p *progress) setProgress(done, of int) { p.done, p.total = done, of }

// showProgress draws the progress.
func (p *progress) showProgress() {
	p.timer.Reset(redrawEvery)
	if !p.terminal {
		return
	}
	p.drawn = true
	if p.total > 1 {
		drawProgress(p.w, p.label, float64(p.done)/float64(p.total), p.done, p.total, "done")
		return
	}
	redrawLine(p.w, p.label)
}

// clear clears the line.
func (p *progress) clear() {
	p.timer.Stop()
	if p.drawn {
		redrawLine(p.w, "")
	}
}
