package eval

import (
	"fmt"
	"io"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
)

// WriteYAML writes the profiles as the engines of a scenario's file.
func (c *Calibration) WriteYAML(w io.Writer) error {
	var profiles []engine.Profile
	for i := range c.Engines {
		profiles = append(profiles, c.Engines[i].Profile)
	}
	_, err := io.WriteString(w, sim.EnginesFile(profiles))
	return err
}

// WriteTable writes, for people, how well each profile does on what was held out:
// the mean error and the median, and of how many.
func (c *Calibration) WriteTable(w io.Writer) error {
	t := printable.NewTable(w)
	for i := range c.Engines {
		e := &c.Engines[i]
		if i == 0 {
			cells := []string{"PROFILE", "FITTED TO", "HELD OUT"}
			for _, of := range ofOne(e.Errors) {
				cells = append(cells, of.Of)
			}
			t.Row(cells...)
		}
		fitted := fmt.Sprintf("%d runs", e.Runs)
		if c.Format == CalibratedRecord {
			fitted = fmt.Sprintf("%d requests", e.Runs)
		}
		name := e.Name
		for from := 0; from < len(e.Errors); {
			row := ofOne(e.Errors[from:])
			cells := []string{name, fitted, row[0].HeldOut}
			for _, x := range row {
				cells = append(cells, x.cell())
			}
			t.Row(cells...)
			from += len(row)
			name, fitted = "", ""
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "errors are mean / median of those held out, relative")
	if c.Format == CalibratedTable {
		fmt.Fprintln(w, "(noise) is how far runs are from their own repetitions: no profile predicts that")
	}
	for i := range c.Engines {
		e := &c.Engines[i]
		if e.Repeated > 0 || e.Waited > 0 {
			fmt.Fprintf(w, "%s: left out are %d rows that repeat another and %d of batches that did not fit and were computed in turns\n", e.Name, e.Repeated, e.Waited)
		}
	}
	for _, a := range c.Assumed {
		fmt.Fprintln(w, "assumed: "+a)
	}
	return nil
}

// ofOne is the leading errors of one way of holding out.
func ofOne(errors []CalibrationError) []CalibrationError {
	for i := range errors {
		if errors[i].HeldOut != errors[0].HeldOut {
			return errors[:i]
		}
	}
	return errors
}

// cell is 1.8% / 0.7% of 95.
func (e *CalibrationError) cell() string {
	if e.N == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%% / %.1f%% of %d", 100*e.Mean, 100*e.Median, e.N)
}
