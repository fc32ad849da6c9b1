package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"
)

// When progress is told of work that takes long, and how often.
const (
	progressAfter = 2 * time.Second
	progressEvery = 10 * time.Second
	redrawEvery   = 200 * time.Millisecond
)

// inParallel does n pieces of work, the last first, on all cores. It returns
// the error of the first piece that failed, or the context's as soon as that
// ends: pieces that are being worked on then are left to themselves.
func inParallel(ctx context.Context, n int, work func(i int) error, told *progress) error {
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
	told.set(0, n)
	failed := outcome{i: n}
	for count := 0; count < n; {
		select {
		case <-ctx.Done():
			told.end()
			return ctx.Err()
		case o := <-done:
			count++
			if o.err != nil && o.i < failed.i {
				failed = o
			}
			told.set(count, n)
		case <-told.tick():
			told.show()
		}
	}
	told.end()
	return failed.err
}

// progress tells on w how much of the work is done, once it takes long: in one
// line that is drawn again on a terminal, in a line now and then elsewhere.
type progress struct {
	w        io.Writer
	what     string
	terminal bool
	timer    *time.Ticker
	done, of int
	drawn    bool
}

func newProgress(w io.Writer, what string) *progress {
	return &progress{w: w, what: what, terminal: isTerminal(w), timer: time.NewTicker(progressAfter)}
}

func (p *progress) tick() <-chan time.Time { return p.timer.C }

func (p *progress) set(done, of int) { p.done, p.of = done, of }

// show tells where the work is.
func (p *progress) show() {
	text := p.what
	if p.of > 1 {
		text += fmt.Sprintf(": %d of %d", p.done, p.of)
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

// end takes the line back.
func (p *progress) end() {
	p.timer.Stop()
	if p.drawn && p.terminal {
		redrawLine(p.w, "")
	}
}
