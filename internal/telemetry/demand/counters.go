package demand

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
)

// counterColumn is the column that distinguishes a CSV file of counter readings.
const counterColumn = "prompt_tokens_total"

// columnsOf returns the columns of a CSV header, in lower case.
func columnsOf(header string) []string {
	columns := strings.Split(strings.TrimPrefix(header, "\ufeff"), ",")
	for i, c := range columns {
		columns[i] = strings.ToLower(strings.Trim(strings.TrimSpace(c), `"`))
	}
	return columns
}

// readCounters reads a CSV file of counter readings: at (a time with its offset from UTC),
// model, prompt_tokens_total and, if known, region, tier and instance, which distinguishes
// the counters of a series.
func readCounters(name string, in io.Reader) (*found, error) {
	r := csv.NewReader(in)
	r.ReuseRecord, r.TrimLeadingSpace = true, true
	head, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("reading history %s: %w", name, err)
	}
	var c counterFile
	if c.columns, err = service.Columns(head); err != nil {
		return nil, fmt.Errorf("reading history %s:1: %w", name, err)
	}
	for _, column := range []string{"at", "model"} {
		if _, ok := c.columns[column]; !ok {
			return nil, fmt.Errorf("reading history %s:1: header must contain the column %q, got %q", name, column, strings.Join(head, ","))
		}
	}
	var readings []forecast.Sample
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading history %s: %w", name, err)
		}
		line, _ := r.FieldPos(0)
		s, err := c.reading(record)
		if err != nil {
			return nil, fmt.Errorf("reading history %s:%d: %w", name, line, err)
		}
		readings = append(readings, s)
	}
	grown, report, err := forecast.CounterIncreases(readings, time.Minute)
	if err != nil {
		return nil, fmt.Errorf("reading history %s: %w", name, err)
	}
	return &found{samples: grown, report: report, gapsUnknown: true}, nil
}

// counterFile holds the columns of a file of counter readings.
type counterFile struct{ columns map[string]int }

func (c counterFile) field(record []string, column string) string {
	if i, ok := c.columns[column]; ok {
		return strings.TrimSpace(record[i])
	}
	return ""
}

func (c counterFile) reading(record []string) (forecast.Sample, error) {
	at, err := time.Parse(time.RFC3339, c.field(record, "at"))
	if err != nil {
		return forecast.Sample{}, fmt.Errorf("at must be a time with its offset from UTC such as 2025-01-31T12:00:00Z, got %q", c.field(record, "at"))
	}
	text := c.field(record, counterColumn)
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !(value >= 0 && value <= 1e18) {
		return forecast.Sample{}, fmt.Errorf("%s must be a count of 0 to 1e18, got %q", counterColumn, text)
	}
	labels := map[string]string{}
	for _, l := range []string{"model", "region", "tier"} {
		labels[l] = c.field(record, l)
	}
	if labels["model"] == "" {
		return forecast.Sample{}, errors.New(`model must not be empty, got ""`)
	}
	key, err := keyOfLabels(labels)
	return forecast.Sample{SeriesKey: key, Source: c.field(record, "instance"), At: at.Unix(), Value: value}, err
}
