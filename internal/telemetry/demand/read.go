package demand

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/sim/workload"
	"skyserve/internal/telemetry"
)

// Read reads a file, plain or gzipped; name is used in errors. It accepts the formats of
// telemetry.ReadHistory, the traces of workload.OpenTrace, which are counted per minute,
// tables of request rates (ServeGen), and CSV of a counter's readings (at, model,
// prompt_tokens_total).
func Read(name string, r io.Reader, o Options) (*History, error) {
	raw, err := read(name, r)
	if err != nil {
		return nil, err
	}
	return raw.history(name, o)
}

// read detects the format by the first line.
func read(name string, r io.Reader) (*found, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("reading history %s: unpacking gzip: %w", name, err)
		}
		in = bufio.NewReaderSize(z, 64<<10)
	}
	head, _ := in.Peek(in.Size()) // reading below returns the same error
	first, _, _ := strings.Cut(string(head), "\n")
	format, ok := workload.FormatOf(strings.TrimSpace(first))
	switch {
	case ok && strings.HasPrefix(format, "servegen"):
		return readRates(name, in)
	case ok:
		return readTrace(name, in)
	case slices.Contains(columnsOf(first), counterColumn):
		return readCounters(name, in)
	}
	points, err := telemetry.ReadHistory(name, in)
	f := &found{points: points}
	if err == nil && !slices.ContainsFunc(points, func(p telemetry.Point) bool { return p.Balancer != "" }) {
		err = f.findStep(name)
	}
	return f, err
}

// maxStep is the maximum step of rows: a plan needs the peaks within a day.
const maxStep = time.Hour

// findStep finds the step of rows that no balancer wrote: balancers count by minute, and send no row for an idle one. It is
// the commonest time between consecutive rows of a series, if it occurs twice and most of the others are multiples of it.
func (f *found) findStep(name string) error {
	minutes := map[forecast.SeriesKey][]int64{}
	for _, p := range f.points {
		key := keyOf(p.Region, p.Model, p.Tier)
		minutes[key] = append(minutes[key], p.Minute)
	}
	counts, all := map[int64]int{}, 0
	for _, m := range minutes {
		slices.Sort(m)
		m = slices.Compact(m)
		for i := 1; i < len(m); i++ {
			counts[m[i]-m[i-1]]++
			all++
		}
	}
	step, multiples := int64(1), 0
	for d, n := range counts {
		if n > counts[step] || n == counts[step] && d < step {
			step = d
		}
	}
	for d, n := range counts {
		if d%step == 0 {
			multiples += n
		}
	}
	if step == 1 || counts[step] < 2 || 2*multiples <= all {
		return nil
	}
	f.step = time.Duration(step) * time.Minute
	const otherwise = "(if each row counts for 1 minute, add a row of 0 prompt tokens for the minute after each)"
	if f.step > maxStep {
		return fmt.Errorf("reading history %s: rows must be at most %s apart, got %s: write the load of every hour %s",
			name, forecast.ShortDuration(maxStep), forecast.ShortDuration(f.step), otherwise)
	}
	f.notes = append(f.notes, fmt.Sprintf("rows are %[1]s apart: each counts for %[1]s %[2]s", forecast.ShortDuration(f.step), strings.Replace(otherwise, "each row", "each", 1)))
	return nil
}

// readRates reads a table of request rates. In a table by client, a missing window means
// that the client was idle; in a table of totals it is unknown.
func readRates(name string, in io.Reader) (*found, error) {
	rates, window, err := workload.ReadRates(name, in)
	if err != nil {
		return nil, err
	}
	if window%time.Minute != 0 {
		return nil, fmt.Errorf("reading history %s: t_s must have steps of whole minutes, got %s", name, window)
	}
	f := &found{window: window, samples: make([]forecast.Sample, len(rates)), gapsUnknown: len(rates) > 0 && rates[0].Client == ""}
	for i, r := range rates {
		f.samples[i] = forecast.Sample{
			SeriesKey: keyOf("", r.Model, ""), Source: r.Client, At: int64(r.Start / time.Second), Value: r.PerSecond,
		}
	}
	return f, nil
}

// rowKey returns the key of the series that a row of a trace belongs to.
func rowKey(r workload.TraceRow) forecast.SeriesKey {
	return keyOf(service.Region(r.Region), r.Model, r.Tier)
}
