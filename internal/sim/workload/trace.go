package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"skyserve/internal/service"
)

// TraceRow is a request of a trace: its time, its lengths, and what it shares with other rows. Traces
// contain no text.
type TraceRow struct {
	// Number is the number of the row, from 1, in file order.
	Number int
	// Line is the row's line in the file, 0 if it was drawn from a rate.
	Line int
	// At is the time of the request since the start of the replay.
	At time.Duration
	// InputTokens and OutputTokens are the lengths of the prompt and the response.
	InputTokens, OutputTokens int
	// Blocks are the IDs of the prompt's blocks of BlockTokens tokens: rows with equal leading IDs share
	// that prefix. Nil if the trace has no such data.
	Blocks      []uint64
	BlockTokens int
	// Session identifies the conversation of the row; empty if unknown.
	Session string
	// User is the tenant or client; empty if unknown.
	User string
	// Region is the origin of the request; empty if unknown.
	Region string
	// Model is the model's name in the trace; empty if unknown.
	Model string
	// Tier is the latency class; empty if the trace has none.
	Tier service.Tier
}

// maxTokens limits a row's lengths: a larger value indicates a corrupt file, and would allocate
// gigabytes.
const maxTokens = 4 << 20

// AppendPrompt appends the text of the row's prompt with InputTokens tokens. A block's text depends
// only on its ID, so rows with equal leading IDs have equal prefixes; the last block is truncated to
// the row's length. Text beyond the blocks is unique to the row: it depends on seed and the row's
// number.
func (r TraceRow) AppendPrompt(dst []byte, seed uint64) []byte {
	remaining := r.InputTokens
	for _, id := range r.Blocks {
		if remaining == 0 || r.BlockTokens == 0 {
			break
		}
		n := min(remaining, r.BlockTokens)
		dst = AppendText(dst, n, keyOf("block", id))
		remaining -= n
	}
	return AppendText(dst, remaining, keyOf("row", seed, uint64(r.Number)))
}

// Request returns the chat request of a row: one user message. A row without tokens gets one prompt and
// one output token, since engines reject empty requests.
func (r TraceRow) Request(seed uint64, model string) Request {
	q := r.Lengths(model)
	r.InputTokens = q.InputTokens
	prompt := r.AppendPrompt(make([]byte, 0, r.InputTokens*wordBytes), seed)
	q.Messages = []Message{{"user", string(prompt)}}
	return q
}

// Lengths returns the request of a row without its text, for light engines.
func (r TraceRow) Lengths(model string) Request {
	session := r.Session
	if session == "" {
		session = "row-" + strconv.Itoa(r.Number)
	}
	return Request{
		Seq: r.Number, Session: session, User: r.User, Region: r.Region, Model: model, Tier: r.Tier,
		InputTokens: max(r.InputTokens, 1), OutputTokens: max(r.OutputTokens, 1),
	}
}

// TraceOptions select and transform the rows of a trace.
type TraceOptions struct {
	// Seed determines the arrivals drawn from rates, and the regions.
	Seed uint64
	// From and To limit the rows, by the time since the first (in a table of rates, by its own time);
	// From is inclusive, To exclusive, To 0 = to the end. The replay starts at From.
	From, To time.Duration
	// RateScale compresses time: with 2 the rows arrive twice as fast. 0 = 1.
	RateScale float64
	// MaxInput omits and counts rows with a longer prompt; 0 = no limit.
	MaxInput int
	// Weights distributes the rows over regions; a row with one of these regions keeps it, and the rows
	// of a session stay together. Empty = the regions of the trace.
	Weights []Weight
}

// Weight is a region's share of the rows.
type Weight struct {
	Region string
	Weight float64
}

// Trace reads a request trace in order of time, with a limited number of rows in memory.
type Trace struct {
	format  string
	rows    source
	options TraceOptions
	regions regions
	leftOut int
}

// source yields rows in order of time; io.EOF at the end.
type source interface {
	next() (TraceRow, error)
}

// Formats returns the names of the supported trace formats, the values of Trace.Format.
func Formats() []string {
	names := []string{formatMooncake, formatBailian}
	for _, f := range csvFormats {
		names = append(names, f.name)
	}
	return append(names, formatRates, formatTotalRates)
}

// FormatOf detects the format of a trace, one of Formats, from its first line; ok is false if it is
// unknown.
func FormatOf(firstLine string) (format string, ok bool) {
	if strings.HasPrefix(firstLine, "{") {
		format = jsonlFormat(firstLine)
		return format, format != ""
	}
	r, err := newRecords("", bufio.NewReader(strings.NewReader(strings.TrimPrefix(firstLine, "\ufeff"))))
	if err != nil {
		return "", false
	}
	if f := r.requests(); f != nil {
		return f.name, true
	}
	if f := r.rates(); f != nil {
		return f.name, true
	}
	return "", false
}

// OpenTrace opens a trace; errors refer to it as name. It detects the format from the first line and
// gzip from the first bytes. It sorts rows that are out of order by at most ReorderWindow rows; a
// larger displacement is an error, as is a malformed row, whose error contains file, line, field and
// value.
func OpenTrace(name string, r io.Reader, o TraceOptions) (*Trace, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	in, err := plainText(name, r)
	if err != nil {
		return nil, err
	}
	t := &Trace{options: o, regions: newRegions(o.Weights, o.Seed)}
	if t.format, t.rows, err = sniff(name, in, o); err != nil {
		return nil, err
	}
	return t, nil
}

// check validates the options.
func (o TraceOptions) check() error {
	switch {
	case !(o.RateScale >= 0) || math.IsInf(o.RateScale, 0):
		return fmt.Errorf("rate scale: must be a positive number, got %v", o.RateScale)
	case o.From < 0:
		return fmt.Errorf("from: must not be negative, got %s", o.From)
	case o.To != 0 && o.To <= o.From:
		return fmt.Errorf("to: must be after from (%s), got %s", o.From, o.To)
	case o.MaxInput < 0:
		return fmt.Errorf("max input: must not be negative, got %d", o.MaxInput)
	}
	return checkWeights(o.Weights)
}

// Format returns the trace's format, one of Formats.
func (t *Trace) Format() string { return t.format }

// Origin returns the time of the first row in the file, after the first call of Next: since 1970 in
// formats with dates, otherwise relative to the trace's own epoch. It is 0 for a table of rates.
func (t *Trace) Origin() time.Duration {
	if o, ok := t.rows.(*ordered); ok {
		return o.origin
	}
	return 0
}

// Skipped returns the number of rows omitted so far because their prompt exceeds MaxInput.
func (t *Trace) Skipped() int { return t.leftOut }

// Next returns the next row with its time shifted and scaled; io.EOF at the end.
func (t *Trace) Next() (TraceRow, error) {
	for {
		row, err := t.rows.next()
		if err != nil {
			return TraceRow{}, err
		}
		if row.At < t.options.From {
			continue
		}
		if t.options.To > 0 && row.At >= t.options.To {
			return TraceRow{}, io.EOF
		}
		if t.options.MaxInput > 0 && row.InputTokens > t.options.MaxInput {
			t.leftOut++
			continue
		}
		row.At -= t.options.From
		if s := t.options.RateScale; s > 0 {
			row.At = time.Duration(min(float64(row.At)/s, math.MaxInt64/2))
		}
		row.Region = t.regions.regionOf(row)
		return row, nil
	}
}

// plainText decompresses gzip, detected by its magic bytes, and drops a byte-order mark.
func plainText(name string, r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("reading %s: decompressing gzip: %w", name, err)
		}
		in = bufio.NewReaderSize(z, 64<<10)
	}
	if mark, _ := in.Peek(3); string(mark) == "\ufeff" {
		_, _ = in.Discard(3) // it was just peeked: it is there
	}
	return in, nil
}

// sniff detects the format from the first line and opens the trace.
func sniff(name string, in *bufio.Reader, o TraceOptions) (string, source, error) {
	first, err := firstLine(name, in)
	if err != nil {
		return "", nil, err
	}
	if strings.HasPrefix(first, "{") {
		format, s, err := openJSONL(name, in, first)
		return format, sorted(name, s), err
	}
	return openCSV(name, in, first, o)
}

// firstLine peeks at the first line; if it is longer than the buffer, at its start.
func firstLine(name string, in *bufio.Reader) (string, error) {
	head, err := in.Peek(in.Size())
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading %s:1: %w", name, err)
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	if text := strings.TrimSpace(string(line)); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("reading %s:1: the first line is empty: must be a header or a JSON object", name)
}

// unknownFormat returns the error for a first line of none of the formats.
func unknownFormat(name, first string, formats []string) error {
	return fmt.Errorf("reading %s:1: the first line must have the columns or JSON keys of a trace format (%s), got %s",
		name, strings.Join(formats, ", "), excerpt(first))
}

// excerpt quotes a value, shortened.
func excerpt(s string) string {
	const limit = 60
	if n := limit; len(s) > limit {
		for n > 0 && !utf8.RuneStart(s[n]) { // end before a divided character; other bytes, as of a binary file, are shown
			n--
		}
		return fmt.Sprintf("%q...", s[:n])
	}
	return fmt.Sprintf("%q", s)
}
