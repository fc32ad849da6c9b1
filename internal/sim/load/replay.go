package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"skyserve/internal/sim/workload"
)

// Rows is the source of rows for Replay; *workload.Trace implements it.
type Rows interface {
	// Next returns the next row in order of time; io.EOF ends the trace.
	Next() (workload.TraceRow, error)
	// Skipped counts the rows omitted so far.
	Skipped() int
}

// replay is an open loop: responses do not affect what it issues.
type replay struct {
	*run
	rows  Rows
	seed  uint64
	slots chan struct{}

	delayed int
	maxLag  time.Duration
}

// Replay issues a trace's rows at their times, each in the row's region, without waiting for responses.
// It ends with the trace, or after duration if that is not 0, and then drains requests in flight. seed
// determines the text of rows without shared text. A malformed row ends the load with an error and no
// report.
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
	r.ended.Store(!finished)
	window := time.Since(r.start)
	if whole := r.drain(ctx); finished {
		window = p.window(whole)
	}
	report := r.record.report(window, ctx.Err() != nil)
	omitted, lag := rows.Skipped(), milliseconds(p.maxLag)
	report.RowsSkipped, report.Delayed, report.MaxLag = &omitted, &p.delayed, &lag
	return report, nil
}

// all issues every row; finished is false if the load ended first.
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
			p.serveRequest(target, row.Request(p.seed, ""))
			<-p.slots
		})
	}
}

// await waits until a row is due; it returns false if the load ends first.
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

// slot acquires a slot in flight, and counts the row as delayed if it has to wait; it returns false if
// the load ends first.
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

// window returns the time that the rates of a completed trace cover: until the last response, or until
// the requests in flight were cancelled.
func (p *replay) window(whole bool) time.Duration {
	if last := p.record.lastEnd; whole && last.After(p.start) {
		return last.Sub(p.start)
	}
	return max(time.Since(p.start), time.Microsecond)
}
