package eval

import (
	"fmt"
	"io"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
)

// WriteYAML writes the profiles as the engines section of a scenario file.
func (c *Calibration) WriteYAML(w io.Writer) error {
	var profiles []engine.Profile
	for i := range c.Engines {
		profiles = append(profiles, c.Engines[i].Profile)
	}
	_, err := io.WriteString(w, sim.EnginesYAML(profiles))
	return err
}

// WriteTable prints the errors of each profile on held-out data: mean, median and count.
func (c *Calibration) WriteTable(w io.Writer) error {
	t := printable.NewTable(w)
	for i := range c.Engines {
		e := &c.Engines[i]
		if i == 0 {
			cells := []string{"PROFILE", "FITTED TO", "HELD OUT"}
			for _, of := range leadingHeldOut(e.Errors) {
				cells = append(cells, of.Quantity)
			}
			t.Row(cells...)
		}
		fitted := printable.Count(e.Runs, "run")
		if c.Format == CalibratedRecord {
			fitted = printable.Count(e.Runs, "request")
		}
		name := e.Name
		for from := 0; from < len(e.Errors); {
			row := leadingHeldOut(e.Errors[from:])
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
	fmt.Fprintln(w, "errors: mean / median relative error of the number of predictions after \"of\", for held-out data: runs that the fit did not use")
	if c.Format == CalibratedTable {
		fmt.Fprintln(w, "one run in five: a fifth of the runs of each size was held out; all of one size: every run of one size was")
		fmt.Fprintln(w, "(noise): deviation of runs from their own repetitions, a floor for every profile")
	}
	for i := range c.Engines {
		e := &c.Engines[i]
		if e.Repeated > 0 || e.Waited > 0 {
			fmt.Fprintf(w, "%s: excluded %s, and %s that did not fit and ran in parts\n", e.Name, printable.Count(e.Repeated, "duplicate row"), printable.Count(e.Waited, "batch"))
		}
	}
	for _, a := range c.Assumed {
		fmt.Fprintln(w, "assumed: "+a)
	}
	return nil
}

// leadingHeldOut returns the leading errors with the same held-out set.
func leadingHeldOut(errors []CalibrationError) []CalibrationError {
	for i := range errors {
		if errors[i].HeldOut != errors[0].HeldOut {
			return errors[:i]
		}
	}
	return errors
}

// cell formats an error, such as 1.8% / 0.7% of 95.
func (e *CalibrationError) cell() string {
	if e.N == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%% / %.1f%% of %d", 100*e.Mean, 100*e.Median, e.N)
}
