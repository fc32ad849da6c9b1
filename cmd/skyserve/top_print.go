package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// snapshotPrinter prints a snapshot.
type snapshotPrinter func(*telemetry.Snapshot) error

// printer returns the printer for the output format; file is the file of out, if it is one.
func (o *topOptions) printer(theme tui.Theme, file *os.File, out io.Writer) snapshotPrinter {
	if o.format.isDocument() {
		return o.format.snapshotPrinter(out, o.countSet)
	}
	return framePrinter(theme, file, out)
}

// snapshotPrinter prints documents. Several are one JSON document a line, also on a terminal.
func (f outputFormat) snapshotPrinter(out io.Writer, several bool) snapshotPrinter {
	return func(s *telemetry.Snapshot) error {
		switch {
		case several && f.kind == outputJSON:
			return json.NewEncoder(out).Encode(s)
		case several:
			return f.writeItem(out, s.Service, s)
		}
		return f.writeDocument(out, s)
	}
}

// framePrinter prints frames with all replicas, separated by empty lines. On a terminal they have
// its width, otherwise they are plain text of any width.
func framePrinter(theme tui.Theme, file *os.File, out io.Writer) snapshotPrinter {
	columns := 0
	if file != nil {
		columns = tui.Columns(file)
	}
	if columns == 0 {
		theme = theme.Plain()
	}
	var previous *telemetry.Snapshot
	return func(s *telemetry.Snapshot) error {
		if previous != nil {
			if _, err := fmt.Fprintln(out); err != nil {
				return fmt.Errorf("writing the frame: %w", err)
			}
		}
		s.At = s.At.Local()
		frame := tui.Render(s, previous, columns, 0, theme)
		previous = s
		return tui.PrintFrame(rawWriter(out), frame) // Render has sanitised the texts
	}
}

// printFrames prints the requested number of snapshots. If the first fails, so does print. Later failures
// are reported on errOut and result in exit code 3.
func (o *topOptions) printFrames(ctx context.Context, v *topView, print snapshotPrinter, errOut io.Writer) error {
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	count, missing, problem := max(o.count, 1), 0, ""
	for i := range count {
		s, _, err := v.Fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && i == 0:
			return failed(fmt.Errorf("fetching a snapshot: %w", err), o.hint(err))
		case err != nil:
			missing++
			if text := err.Error(); text != problem {
				printMessage(errOut, labelProblem, "%s", text)
				problem = text
			}
		default:
			if err := print(s); err != nil {
				return err
			}
			problem = ""
		}
		if v.ended() || i+1 == count {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	if missing > 0 {
		return &exitError{code: exitPartial, err: fmt.Errorf("%d of %d snapshots are missing", missing, count)}
	}
	return nil
}
