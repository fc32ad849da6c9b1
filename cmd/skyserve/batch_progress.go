package main

import (
	"fmt"
	"io"
	"time"

	"skyserve/internal/printable"
	"skyserve/lbd/batch/job"
)

// progressLine returns a function that replaces the progress line of a terminal, which an empty text clears; it does
// nothing if w is no terminal.
func progressLine(w io.Writer) func(text string) {
	if !isTerminal(w) {
		return func(string) {}
	}
	return func(text string) { redrawLine(w, text) }
}

// transferProgress returns a function that shows the progress of a transfer, at most once per batchPoll. total is the
// size in bytes; below 1 = unknown.
func transferProgress(show func(text string), doing string, total int64) func(done int64) {
	var shown time.Time
	return func(done int64) {
		if now := time.Now(); now.Sub(shown) > batchPoll {
			shown = now
			show(transferText(doing, done, total))
		}
	}
}

// transferText describes the progress of a transfer.
func transferText(doing string, done, total int64) string {
	if total < 1 {
		return printable.Bytes(done) + ", " + doing
	}
	share := float64(done) / float64(total)
	return fmt.Sprintf("%s %3.0f %%, %s of %s, %s", bar(share), 100*share, printable.Bytes(done), printable.Bytes(total), doing)
}

// batchProgress describes the progress of a batch that has not ended, and the time left until its deadline.
func batchProgress(b *job.Batch, left time.Duration) string {
	c := b.RequestCounts
	if c.Total == 0 {
		return fmt.Sprintf("%s, expires in %s", b.Status, left.Round(time.Second))
	}
	share := float64(c.Completed+c.Failed) / float64(c.Total)
	text := fmt.Sprintf("%s %3.0f %%, %s", bar(share), 100*share, countsText(c))
	if b.Status != job.InProgress {
		text += ", " + string(b.Status)
	}
	return fmt.Sprintf("%s, expires in %s", text, left.Round(time.Second))
}
