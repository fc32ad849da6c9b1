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

// snapshotPrinter prints snapshots, one after the other.
type snapshotPrinter func(*telemetry.Snapshot) error

// printer is how snapshots are printed to out, which may be a file.
func (o *topOptions) printer(theme tui.Theme, file *os.File, out io.Writer) snapshotPrinter {
	if o.output == "json" {
		return jsonPrinter(out, o.counted)
	}
	return framePrinter(theme, file, out)
}

// jsonPrinter prints one document for a person to read, or documents of a line each.
func jsonPrinter(out io.Writer, lines bool) snapshotPrinter {
	enc := json.NewEncoder(out)
	if !lines {
		enc.SetIndent("", "  ")
	}
	return func(s *telemetry.Snapshot) error {
		if err := enc.Encode(s); err != nil {
			return fmt.Errorf("writing the snapshot: %w", err)
		}
		return nil
	}
}

// framePrinter prints frames with every replica, an empty line between two: as wide as
// the terminal, or plain and as wide as need be where out is none.
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
		return tui.PrintFrame(unguarded(out), frame) // whose texts the dashboard made harmless
	}
}

// print prints as many snapshots as were asked for. The first must come; that a later
// one is missing is told on talk, and is exit code 3 in the end.
func (o *topOptions) print(ctx context.Context, v *topView, print snapshotPrinter, talk io.Writer) error {
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	count, missing, said := max(o.count, 1), 0, ""
	for i := range count {
		s, _, err := v.Fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && i == 0:
			return failed(fmt.Errorf("fetching a snapshot: %w", err), o.hint())
		case err != nil:
			missing++
			if text := err.Error(); text != said {
				fmt.Fprintf(talk, "problem: %s\n", text)
				said = text
			}
		default:
			if err := print(s); err != nil {
				return err
			}
			said = ""
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
