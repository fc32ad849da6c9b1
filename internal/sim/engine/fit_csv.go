package engine

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
)

// The columns read from a table of measurements; others are ignored.
const (
	colModel    = "model"
	colHardware = "hardware"
	colPrompt   = "prompt_size"
	colBatch    = "batch_size"
	colOutput   = "token_size"
	colPrefill  = "prompt_time"
	colDecode   = "token_time"
	colWhole    = "e2e_time"
	colParallel = "tensor_parallel"
)

var measurementColumns = []string{colModel, colHardware, colPrompt, colBatch, colOutput, colPrefill, colDecode, colWhole, colParallel}

// Limits of plausible values.
const (
	maxMeasured       = 10_000_000 // tokens of a batch, GPUs
	maxMeasuredMillis = 24 * 3600 * 1000
)

// tableRow is a row with times in the unit of its table.
type tableRow struct {
	Measurement
	prefill, decode, whole float64
}

// ReadMeasurements reads a table of measurements as CSV with the columns, in any order, model,
// hardware, prompt_size, batch_size, token_size, prompt_time, token_time, e2e_time and tensor_parallel.
// Errors refer to the table as name.
//
// Two conventions share that header. In Splitwise's, times are milliseconds, token_time is the time of
// one decode step, and e2e_time is prompt_time plus token_time times the number of steps: token_size-1,
// or fewer if the responses ended early, and many more if the batch did not fit and was computed in
// parts. In SageServe's, times are seconds, token_time is the time of all decode steps together, and
// e2e_time is prompt_time plus token_time; prompt_time is that of the first prompts of a batch (equal
// for 2 prompts and for 32), so prefills of more than one prompt are unknown. A table uses the second
// convention if the median of (e2e_time-prompt_time)/token_time over rows with 3 tokens or more is
// below 1.5; a table without such rows is ambiguous and an error.
func ReadMeasurements(name string, r io.Reader) ([]Measurement, error) {
	in := csv.NewReader(r)
	in.TrimLeadingSpace = true
	header, err := in.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading %s: the table is empty: must have the columns %s", name, strings.Join(measurementColumns, ","))
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	column, err := columnsOf(header)
	if err != nil {
		return nil, fmt.Errorf("reading %s:1: %w", name, err)
	}
	var rows []tableRow
	for {
		fields, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		line, _ := in.FieldPos(0)
		row, err := readRow(fields, column)
		if err != nil {
			return nil, fmt.Errorf("reading %s:%d: %w", name, line, err)
		}
		row.Line = line
		rows = append(rows, *row)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("reading %s: the table has no measurements", name)
	}
	return measurementsOf(name, rows)
}

// columnsOf returns the index of each column.
func columnsOf(header []string) (map[string]int, error) {
	column, err := service.Columns(header)
	if err != nil {
		return nil, err
	}
	for _, want := range measurementColumns {
		if _, there := column[want]; !there {
			return nil, fmt.Errorf("column %q is missing: must have %s", want, strings.Join(measurementColumns, ","))
		}
	}
	return column, nil
}

// readRow parses the fields of one row.
func readRow(fields []string, column map[string]int) (*tableRow, error) {
	var row tableRow
	field := func(name string) string { return strings.TrimSpace(fields[column[name]]) }
	for name, to := range map[string]*string{colModel: &row.Model, colHardware: &row.Hardware} {
		if *to = field(name); *to == "" {
			return nil, fmt.Errorf("%s: must not be empty", name)
		}
	}
	for _, c := range []struct {
		name string
		to   *int
	}{{colPrompt, &row.PromptTokens}, {colBatch, &row.Batch}, {colOutput, &row.OutputTokens}, {colParallel, &row.TensorParallel}} {
		n, err := strconv.Atoi(field(c.name))
		if err != nil || n < 1 || n > maxMeasured {
			return nil, fmt.Errorf("%s: must be an integer from 1 to %d, got %q", c.name, maxMeasured, field(c.name))
		}
		*c.to = n
	}
	if row.PromptTokens > maxMeasured/row.Batch {
		return nil, fmt.Errorf("%s: must be at most %d tokens in a batch, got %d prompts of %d", colBatch, maxMeasured, row.Batch, row.PromptTokens)
	}
	for _, c := range []struct {
		name string
		to   *float64
	}{{colPrefill, &row.prefill}, {colDecode, &row.decode}, {colWhole, &row.whole}} {
		x, err := strconv.ParseFloat(field(c.name), 64)
		alone := c.name == colDecode && row.OutputTokens == 1 // the first token needs no decode step
		if err != nil || math.IsNaN(x) || x < 0 || x == 0 && !alone || x > maxMeasuredMillis {
			return nil, fmt.Errorf("%s: must be a time greater than 0 and at most a day, got %q", c.name, field(c.name))
		}
		*c.to = x
	}
	if row.whole < row.prefill {
		return nil, fmt.Errorf("%s: must be at least %s, %g, got %g", colWhole, colPrefill, row.prefill, row.whole)
	}
	return &row, nil
}

// minTokenSize is the minimum token_size of a row that distinguishes the two conventions: with 2 tokens
// there is one decode step, whose time is the total.
const minTokenSize = 3

// measurementsOf detects the convention and converts rows to measurements.
func measurementsOf(name string, rows []tableRow) ([]Measurement, error) {
	var steps []float64
	for i := range rows {
		if rows[i].OutputTokens >= minTokenSize {
			steps = append(steps, (rows[i].whole-rows[i].prefill)/rows[i].decode)
		}
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("reading %s: no row has a token_size of %d or more, so it is unknown whether token_time is per token or the total", name, minTokenSize)
	}
	slices.Sort(steps)
	totals := steps[len(steps)/2] < 1.5
	out := make([]Measurement, len(rows))
	for i := range rows {
		if totals {
			out[i] = rows[i].inTotals()
		} else {
			out[i] = rows[i].byToken()
		}
		if m := &out[i]; m.Steps > 0 && m.StepTime <= 0 {
			return nil, fmt.Errorf("reading %s:%d: %s: must be at least a nanosecond per token, got %g", name, m.Line, colDecode, rows[i].decode)
		}
	}
	return out, nil
}

// byToken converts Splitwise's convention: milliseconds, token_time per step.
func (r *tableRow) byToken() Measurement {
	m := r.Measurement
	m.PrefillTime = time.Duration(r.prefill * float64(time.Millisecond))
	if m.OutputTokens == 1 {
		return m
	}
	m.StepTime = time.Duration(r.decode * float64(time.Millisecond))
	// Up to a tenth more than the steps is the time between prefill and decode.
	steps := (r.whole - r.prefill) / r.decode
	m.Waited = steps > 1.1*float64(m.OutputTokens)+1
	m.Steps = min(max(1, int(math.Round(min(steps, maxMeasured)))), m.OutputTokens-1)
	return m
}

// inTotals converts SageServe's convention: seconds, token_time of all steps.
func (r *tableRow) inTotals() Measurement {
	m := r.Measurement
	if m.Batch == 1 {
		m.PrefillTime = time.Duration(r.prefill * float64(time.Second))
	}
	if m.OutputTokens == 1 {
		return m
	}
	m.Steps = m.OutputTokens - 1
	m.StepTime = time.Duration(r.decode * float64(time.Second) / float64(m.Steps))
	m.Waited = r.whole-r.prefill > 1.1*r.decode+r.prefill
	return m
}
