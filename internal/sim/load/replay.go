package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"skyserve/internal/sim/workload"
)

// Rows is a trace as Replay reads it; *workload.Trace is one.
type Rows interface {
	// Next gives the next row in the order of time; io.EOF ends the trace.
	Next() (workload.Row, error)
	// LeftOut counts the rows that were left out so far.
	LeftOut() int
}

// replay is an open loop: what it issues depends on the trace alone.
type replay struct {
	*run
	rows  Rows
	seed  uint64
	slots chan struct{}

	delayed int
	maxLag  time.Duration
}

// Replay issues a trace's rows at their times, each in the region the row names,
// and never waits for an answer before the next. It ends with the trace, or
// after duration when that is not 0; requests in flight then drain. seed chooses
// the text of rows that share nothing. A malformed row ends the load with its
// error and no report.
func Replay(ctx context.Context, c Config, rows Rows, seed uint64, duration time.Duration) (*Report, error) {
	r, err := newRun(ctx, c, duration)
	if err != nil {
		return nil, err
	}
	defer r.close()
	p := &replay{run: r, rows: rows, seed: seed, slots: make(chan struct{}, r.config.MaxInFlight)}
	finished, err := p.all()
	if err != nil {
		return nil, err
	}
	r.over.Store(!finished)
	window := time.Since(r.start)
	if whole := r.drain(ctx); finished {
		window = p.window(whole)
	}
	report := r.record.report(window, ctx.Err() != nil)
	left, lag := rows.LeftOut(), milliseconds(p.maxLag)
	report.RowsLeftOut, report.Delayed, report.MaxLag = &left, &p.delayed, &lag
	return report, nil
}

// all issues every row; finished is false when the load was ended before.
func (p *replay) all() (finished bool, err error) {
	for {
		row, err := p.rows.Next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		target, err := p.target(row.Region)
		if err != nil {
			return false, fmt.Errorf("replaying row %d: %w", row.Number, err)
		}
		if !p.await(row.At) || !p.slot() {
			return false, nil
		}
		p.maxLag = max(p.maxLag, time.Since(p.start)-row.At)
		p.inFlight.Go(func() {
			p.serve(target, row.Request(p.seed, ""))
			<-p.slots
		})
	}
}

// await waits until a row is due; false when the load ends before.
func (p *replay) await(at time.Duration) bool {
	wait := at - time.Since(p.start)
	if wait <= 0 {
		return p.issue.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.issue.Done():
		return false
	}
}

// slot takes one of the places in flight, and counts the row as delayed when it
// has to wait for it; false when the load ends before.
func (p *replay) slot() bool {
	select {
	case p.slots <- struct{}{}:
		return true
	default:
	}
	p.delayed++
	select {
	case p.slots <- struct{}{}:
		return true
	case <-p.issue.Done():
		return false
	}
}

// window is the time that the rates of a trace replayed to its end are over:
// until the last answer, or until what was still in flight was cut off.
func (p *replay) window(whole bool) time.Duration {
	if last := p.record.lastEnd; whole && last.After(p.start) {
		return last.Sub(p.start)
	}
	return max(time.Since(p.start), time.Microsecond)
}
