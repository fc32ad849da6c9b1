package sim

import (
	"errors"
	"fmt"
	"io"

	"skyserve/internal/sim/workload"
)

// ReadTrace makes the scenario replay a trace: the rows within its Duration whose prompt fits into
// MaxContext. open opens the file called name: once now, to check that there is something to replay,
// and again for each run, so that memory holds only the rows being sorted (workload.ReorderWindow).
// Without weights in o, rows are distributed over the regions by their clients. An unreadable file, a
// weight of an unknown region and a trace without rows are errors; errors further down in the file are
// errors of the run.
func (s *Scenario) ReadTrace(name string, open func() (io.ReadCloser, error), o workload.TraceOptions) error {
	for _, w := range o.Weights {
		if s.region(w.Region) < 0 {
			return fmt.Errorf("weight of %s: %w", w.Region, s.unknownRegion(w.Region))
		}
	}
	if len(o.Weights) == 0 {
		for _, region := range s.Regions {
			o.Weights = append(o.Weights, workload.Weight{Region: region.Name, Weight: float64(region.Clients)})
		}
	}
	o.MaxInput = s.MaxContext - 1 // at least one token of the response must fit too
	again := func() (Rows, error) { return openFile(name, open, o) }
	format, err := s.tryTrace(name, again)
	if err != nil {
		return err
	}
	// The papers' claims are about the scenario's own workload.
	s.Trace, s.Reference, s.Claims, s.Note = &Trace{name, format, again}, nil, nil, ""
	s.Title = fmt.Sprintf("%s (%s) on the service of %s", name, format, s.Name)
	return nil
}

// tryTrace reads a trace up to its first row.
func (s *Scenario) tryTrace(name string, open func() (Rows, error)) (format string, err error) {
	rows, err := open()
	if err != nil {
		return "", err
	}
	row, err := rows.Next()
	leftOut := rows.Skipped()
	format = rows.(*fileRows).trace.Format()
	if closing := rows.Close(); err == nil {
		err = closing
	}
	if errors.Is(err, io.EOF) || err == nil && row.At >= s.Duration {
		return "", fmt.Errorf("reading %s: no request within %s of its start (%d exceed %d tokens)", name, s.Duration, leftOut, s.MaxContext)
	}
	return format, err
}

// fileRows are the rows of a file.
type fileRows struct {
	name  string
	file  io.Closer
	trace *workload.Trace
}

func openFile(name string, open func() (io.ReadCloser, error), o workload.TraceOptions) (Rows, error) {
	file, err := open()
	if err != nil {
		return nil, err
	}
	trace, err := workload.OpenTrace(name, file, o)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &fileRows{name, file, trace}, nil
}

func (r *fileRows) Next() (workload.TraceRow, error) { return r.trace.Next() }
func (r *fileRows) Skipped() int                     { return r.trace.Skipped() }

func (r *fileRows) Close() error {
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("closing %s: %w", r.name, err)
	}
	return nil
}
