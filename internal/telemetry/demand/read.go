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
	return &found{points: points}, err
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
