package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// When the progress of work is drawn first, and how often.
const (
	progressAfter = 2 * time.Second
	redrawEvery   = 200 * time.Millisecond
)

// bar draws a share (0..1) as a bar of 20 characters.
func bar(share float64) string {
	const places = 20
	full := min(int(share*places), places)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", places-full) + "]"
}

// progress draws how much of some work is done, in one line of a terminal, if it takes long. Nothing is drawn where
// there is no terminal. It is safe for concurrent use.
type progress struct {
	w           io.Writer
	label, what string // of the work and of its parts, such as runs
	terminal    bool
	timer       *time.Ticker // ticks when the line may be drawn

	mu          sync.Mutex
	share       float64 // 0..1
	done, total int     // parts
	drawn       bool
}

// newProgress returns the progress of work that begins now. what names its parts in the plural.
func newProgress(w io.Writer, label, what string) *progress {
	return &progress{w: w, label: label, what: what, terminal: isTerminal(w), timer: time.NewTicker(progressAfter)}
}

// tick returns a channel that receives when showProgress may draw, for works that report parts rarely.
func (p *progress) tick() <-chan time.Time { return p.timer.C }

// setProgress sets how many parts are done, and draws it if the last drawing is long ago.
func (p *progress) setProgress(done, of int) {
	p.setShare(done, of, float64(done)/float64(max(of, 1)))
}

// setShare is setProgress for work whose parts report their own share: share (0..1) is that of the whole.
func (p *progress) setShare(done, of int, share float64) {
	p.mu.Lock()
	p.done, p.total, p.share = done, of, share
	p.mu.Unlock()
	select {
	case <-p.timer.C:
		p.showProgress()
	default:
	}
}

// showProgress draws the progress: a bar if the work has several parts.
func (p *progress) showProgress() {
	p.timer.Reset(redrawEvery)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal {
		return
	}
	p.drawn = true
	text := p.label
	if p.total > 1 {
		text = fmt.Sprintf("%s %s %3.0f %%, %d of %d %s", p.label, bar(p.share), 100*p.share, p.done, p.total, p.what)
	}
	redrawLine(p.w, text)
}

// clear clears the line.
func (p *progress) clear() {
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		redrawLine(p.w, "")
	}
}
