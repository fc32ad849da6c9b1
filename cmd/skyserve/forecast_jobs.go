package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"
)

// When progress is printed first, and how often.
const (
	progressAfter = 2 * time.Second
	progressEvery = 10 * time.Second
	redrawEvery   = 200 * time.Millisecond
)

// inParallel runs n jobs on all cores, the last one first. It returns the error of the failed job
// with the lowest index, or the context's error as soon as that ends, without waiting for running
// jobs.
func inParallel(ctx context.Context, n int, work func(i int) error, shown *progress) error {
	type outcome struct {
		i   int
		err error
	}
	next := make(chan int, n)
	for i := n - 1; i >= 0; i-- {
		next <- i
	}
	close(next)
	done := make(chan outcome, n)
	for range min(n, runtime.GOMAXPROCS(0)) {
		go func() {
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				done <- outcome{i, work(i)}
			}
		}()
	}
	shown.setProgress(0, n)
	failed := outcome{i: n}
	for count := 0; count < n; {
		select {
		case <-ctx.Done():
			shown.clear()
			return ctx.Err()
		case o := <-done:
			count++
			if o.err != nil && o.i < failed.i {
				failed = o
			}
			shown.setProgress(count, n)
		case <-shown.tick():
			shown.showProgress()
		}
	}
	shown.clear()
	return failed.err
}

// progress prints how many jobs are done if they take long: in one line that it redraws on a
// terminal, otherwise in a new line every progressEvery.
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

// showProgress prints the progress.
func (p *progress) showProgress() {
	text := p.label
	if p.total > 1 {
		text += fmt.Sprintf(": %d of %d", p.done, p.total)
	}
	if p.terminal {
		redrawLine(p.w, text)
		p.timer.Reset(redrawEvery)
	} else {
		fmt.Fprintln(p.w, text)
		p.timer.Reset(progressEvery)
	}
	p.drawn = true
}

// clear clears the line on a terminal.
func (p *progress) clear() {
	p.timer.Stop()
	if p.drawn && p.terminal {
		redrawLine(p.w, "")
	}
}
