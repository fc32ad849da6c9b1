package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// queuedLine is a line to be written.
type queuedLine struct {
	record.Line
	written chan struct{} // closed after an attempt to write the line to the file; may be nil
}

// header returns the header of the record for this runtime.
func (r *Runtime) header() record.Header {
	return record.Header{
		Record: record.Version, Started: r.startedAt.UTC(),
		Self:   record.Self{Service: r.self.Service, ID: r.self.ID, Region: r.self.Region},
		Config: record.NewConfig(&r.coreCfg),
	}
}

// recorder writes steps in its own goroutine. A nil recorder is valid and writes no record.
type recorder struct {
	out     *recordWriter
	lines   chan queuedLine
	pending int64 // lines dropped since the last queued line; guarded by the runtime's lock
	dropped atomic.Int64
	missed  int64 // lines that out rejected since it accepted one
}

// newRecorder returns a recorder and writes its header; nil when w is nil.
func newRecorder(w io.Writer, h record.Header, buffer int, log *slog.Logger) *recorder {
	if w == nil {
		return nil
	}
	c := &recorder{out: newRecordWriter(w, log), lines: make(chan queuedLine, buffer)}
	c.out.addLine(h)
	c.out.flush(false)
	return c
}

// recordStep queues a step.
func (c *recorder) recordStep(now time.Duration, ev core.Event, actions []core.Action) {
	if c != nil {
		c.queueLine(now, func() record.Line { return record.Line{T: now, Event: cloneEvent(ev), Actions: slices.Clone(actions)} })
	}
}

// recordConfig queues a new configuration with its actions.
func (c *recorder) recordConfig(now time.Duration, cfg *core.Config, actions []core.Action) {
	if c != nil {
		config := record.NewConfig(cfg)
		c.queueLine(now, func() record.Line { return record.Line{T: now, Config: &config, Actions: slices.Clone(actions)} })
	}
}

// recordCrash writes the event whose step panicked. It returns after an attempt to write this line and all
// previous lines to the file. runRecorder must be running.
func (c *recorder) recordCrash(now time.Duration, ev core.Event, cause string) {
	if c == nil {
		return
	}
	line := queuedLine{Line: record.Line{T: now, Event: cloneEvent(ev), Panic: cause}, written: make(chan struct{})}
	c.lines <- line
	<-line.written
}

// queueLine queues a line; the caller must hold the runtime's lock, which ensures the order of lines.
// It never blocks: a line that does not fit into the queue counts as a gap.
func (c *recorder) queueLine(now time.Duration, line func() record.Line) {
	if c.pending > 0 && len(c.lines) < cap(c.lines)-1 {
		c.lines <- queuedLine{Line: record.Line{T: now, Gap: c.pending}}
		c.pending = 0
	}
	if c.pending == 0 {
		select {
		case c.lines <- queuedLine{Line: line()}:
			return
		default:
		}
	}
	c.pending++
	c.dropped.Add(1)
}

// cloneEvent copies the parts of an event that the caller of a step may change later.
func cloneEvent(ev core.Event) *core.Event {
	ev.Request, ev.Outcome = clonePointer(ev.Request), clonePointer(ev.Outcome)
	ev.Replica, ev.Report, ev.Peer = clonePointer(ev.Replica), clonePointer(ev.Report), clonePointer(ev.Peer)
	if ev.PeerReport = clonePointer(ev.PeerReport); ev.PeerReport != nil {
		ev.PeerReport.Models, ev.PeerReport.StoppedFingerprints = slices.Clone(ev.PeerReport.Models), slices.Clone(ev.PeerReport.StoppedFingerprints)
	}
	ev.CacheUpdates, ev.CacheChanges, ev.Names = slices.Clone(ev.CacheUpdates), slices.Clone(ev.CacheChanges), slices.Clone(ev.Names)
	return &ev
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// runRecorder writes lines until ctx ends, and then the queued lines.
func (c *recorder) runRecorder(ctx context.Context) {
	defer c.out.flush(false)
	for {
		select {
		case line := <-c.lines:
			c.writeLine(line)
		case <-ctx.Done():
			for {
				select {
				case line := <-c.lines:
					c.writeLine(line)
				default:
					return
				}
			}
		}
	}
}

// writeLine writes a line, and flushes it to the file when no other is queued.
func (c *recorder) writeLine(line queuedLine) {
	c.encodeLine(line.Line)
	if len(c.lines) == 0 || line.written != nil {
		c.out.flush(line.written != nil)
	}
	if line.written != nil {
		close(line.written)
	}
}

// encodeLine writes a line, after a gap if lines before it were dropped.
func (c *recorder) encodeLine(line record.Line) {
	if c.missed > 0 && c.out.addLine(record.Line{T: line.T, Gap: c.missed}) {
		c.missed = 0
	}
	switch {
	case c.missed == 0 && c.out.addLine(line):
	case line.Gap > 0: // these lines were counted when they were dropped
		c.missed += line.Gap
	default:
		c.missed++
		c.dropped.Add(1)
	}
}

// finish writes the remaining lines: the steps since the end of runRecorder, and a gap
// at the end. The caller must hold the runtime's lock.
func (c *recorder) finish(now time.Duration) {
	if c == nil {
		return
	}
	for len(c.lines) > 0 {
		c.encodeLine((<-c.lines).Line)
	}
	c.out.flush(true) // makes space for the gap
	if c.pending += c.missed; c.pending > 0 {
		c.out.addLine(record.Line{T: now, Gap: c.pending})
		c.pending, c.missed = 0, 0
	}
	c.out.flush(true)
}

// failure returns an error if the end of the record is missing; nil if the record is complete
// except for gaps.
func (c *recorder) failure() error {
	if c == nil || c.out.lastErr == nil {
		return nil
	}
	return fmt.Errorf("writing the record: %w", c.out.lastErr)
}

// droppedSteps returns the number of steps that were not written.
func (c *recorder) droppedSteps() int64 {
	if c == nil {
		return 0
	}
	return c.dropped.Load()
}
