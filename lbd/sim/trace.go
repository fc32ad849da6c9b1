package sim

import (
	"errors"
	"fmt"
	"io"

	"skyserve/internal/workload"
)

// maxRows bounds the requests of a replay, which are kept in memory.
const maxRows = 5_000_000

// ReadTrace makes the scenario replay a trace: the rows that come within its
// Duration and whose prompt fits into MaxContext. Where o gives no weights, rows
// are spread over the regions by their clients. A file that cannot be read, a
// weight of a region that is not there and a trace without a row are errors.
func (s *Scenario) ReadTrace(name string, r io.Reader, o workload.TraceOptions) error {
	for _, w := range o.Weights {
		if s.region(w.Region) < 0 {
			return fmt.Errorf("weight of %s: no region is called %q", w.Region, w.Region)
		}
	}
	if len(o.Weights) == 0 {
		for _, region := range s.Regions {
			o.Weights = append(o.Weights, workload.Weight{Region: region.Name, Weight: float64(region.Clients)})
		}
	}
	o.MaxInput = s.MaxContext - 1 // a token of the answer must fit too
	in, err := workload.OpenTrace(name, r, o)
	if err != nil {
		return err
	}
	t := &Trace{Name: name, Format: in.Format()}
	for len(t.Rows) < maxRows {
		row, err := in.Next()
		if errors.Is(err, io.EOF) || err == nil && row.At >= s.Duration {
			break
		}
		if err != nil {
			return err
		}
		t.Rows = append(t.Rows, row)
	}
	t.LeftOut = in.LeftOut()
	if len(t.Rows) == 0 {
		return fmt.Errorf("reading %s: no request comes within %s of its beginning (%d are longer than %d tokens)", name, s.Duration, t.LeftOut, s.MaxContext)
	}
	// What papers say is of the scenario's own workload.
	s.Trace, s.Reference, s.Claims, s.Note = t, nil, nil, ""
	s.Title = fmt.Sprintf("%s (%s) on the service of %s", name, t.Format, s.Name)
	return nil
}
