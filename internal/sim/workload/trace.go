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

	"skyserve/internal/service"
)

// Row is one request of a trace: when it comes, how long it is, and what it
// shares with other rows. Traces carry no text.
type Row struct {
	// Number counts the rows of the trace from 1, in the order of the file.
	Number int
	// Line is where the row stands in the file, 0 when it was drawn from a rate.
	Line int
	// At is when the request comes, since the start of the replay.
	At time.Duration
	// InputTokens and OutputTokens are the lengths of the prompt and the answer.
	InputTokens, OutputTokens int
	// Blocks are the ids of the prompt's blocks of BlockTokens tokens, first to
	// last: rows with equal leading ids share that prefix. Nil when the trace
	// does not say what is shared.
	Blocks      []uint64
	BlockTokens int
	// Session groups the rows of one conversation; empty when unknown.
	Session string
	// User is the tenant or client that asks; empty when unknown.
	User string
	// Region is the place the request comes from; empty when unknown.
	Region string
	// Model is the model asked for, as the trace calls it; empty when unknown.
	Model string
	// Tier is the latency class; empty when the trace does not state one.
	Tier service.Tier
}

// maxTokens bounds a row's lengths: a larger figure is a broken file, and would
// be an allocation of gigabytes.
const maxTokens = 4 << 20

// AppendPrompt appends the text of the row's prompt, InputTokens tokens long.
// A block's text follows from its id alone, so equal prefixes of ids are equal
// prefixes of text; the last block is cut to the row's length. What no block
// covers is unique to the row: it follows from seed and the row's number.
func (r Row) AppendPrompt(dst []byte, seed uint64) []byte {
	left := r.InputTokens
	for _, id := range r.Blocks {
		if left == 0 || r.BlockTokens == 0 {
			break
		}
		n := min(left, r.BlockTokens)
		dst = AppendText(dst, n, keyOf("block", id))
		left -= n
	}
	return AppendText(dst, left, keyOf("row", seed, uint64(r.Number)))
}

// Request makes the chat request of a row: one user message. A row of no tokens
// asks with one and for one, because no engine can be asked for none.
func (r Row) Request(seed uint64, model string) Request {
	q := r.Lengths(model)
	r.InputTokens = q.InputTokens
	prompt := r.AppendPrompt(make([]byte, 0, r.InputTokens*wordBytes), seed)
	q.Messages = []Message{{"user", string(prompt)}}
	return q
}

// Lengths makes the request of a row without its text, for a model of an engine
// that reads none.
func (r Row) Lengths(model string) Request {
	session := r.Session
	if session == "" {
		session = "row-" + strconv.Itoa(r.Number)
	}
	return Request{
		Seq: r.Number, Session: session, User: r.User, Region: r.Region, Model: model, Tier: r.Tier,
		InputTokens: max(r.InputTokens, 1), OutputTokens: max(r.OutputTokens, 1),
	}
}

// TraceOptions says which part of a trace is replayed, and how.
type TraceOptions struct {
	// Seed chooses the arrivals that are drawn from rates and the regions.
	Seed uint64
	// From and To bound the rows taken, in the trace's own time, From included;
	// To 0 = to the end. The replay starts at From.
	From, To time.Duration
	// RateScale compresses time: at 2 the rows come twice as fast. 0 = 1.
	RateScale float64
	// MaxInput leaves out rows with a longer prompt, and counts them; 0 = none.
	MaxInput int
	// Weights spreads the rows over regions; a row that names one of them keeps
	// it, and the rows of a session stay together. Empty = as the trace says.
	Weights []Weight
}

// Weight is a region's share of the rows.
type Weight struct {
	Region string
	Weight float64
}

// Trace is a request trace being read, in order of time, a bounded number of
// rows at a time.
type Trace struct {
	format  string
	rows    source
	options TraceOptions
	regions regions
	leftOut int
}

// source yields rows in the order of their time; io.EOF ends it.
type source interface {
	next() (Row, error)
}

// Formats lists the trace formats that OpenTrace knows, by what they are called
// in Trace.Format.
func Formats() []string {
	names := []string{formatMooncake, formatBailian}
	for _, f := range csvFormats {
		names = append(names, f.name)
	}
	return append(names, formatRates, formatTotalRates)
}

// FormatOf tells the format of a trace, one of Formats, by its first line; ok is
// false for anything else.
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

// OpenTrace begins to read a trace; name stands in its errors. The format is
// told from the first line, compression from the first bytes. Rows that are out
// of order are sorted as long as each stands at most ReorderWindow rows from
// its place; further is an error, and so is a malformed row: it names file,
// line, field and what was found.
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

// check refuses options that mean nothing.
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

// Format is the name of the trace's format, one of Formats.
func (t *Trace) Format() string { return t.format }

// Origin is the time of the first row as the file has it, once Next was called: since
// 1970 in a format of dates, since whatever the trace's authors chose in others.
// It is 0 for a table of rates.
func (t *Trace) Origin() time.Duration {
	if o, ok := t.rows.(*ordered); ok {
		return o.origin
	}
	return 0
}

// LeftOut is how many rows were left out so far because their prompt is longer
// than MaxInput.
func (t *Trace) LeftOut() int { return t.leftOut }

// Next gives the next row, its time moved and compressed; io.EOF ends the trace.
func (t *Trace) Next() (Row, error) {
	for {
		row, err := t.rows.next()
		if err != nil {
			return Row{}, err
		}
		if row.At < t.options.From {
			continue
		}
		if t.options.To > 0 && row.At >= t.options.To {
			return Row{}, io.EOF
		}
		if t.options.MaxInput > 0 && row.InputTokens > t.options.MaxInput {
			t.leftOut++
			continue
		}
		row.At -= t.options.From
		if s := t.options.RateScale; s > 0 {
			row.At = time.Duration(min(float64(row.At)/s, math.MaxInt64/2))
		}
		row.Region = t.regions.of(row)
		return row, nil
	}
}

// plainText unpacks gzip, told by its magic bytes, and drops a byte-order mark.
func plainText(name string, r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("reading %s: unpacking gzip: %w", name, err)
		}
		in = bufio.NewReaderSize(z, 64<<10)
	}
	if mark, _ := in.Peek(3); string(mark) == "\ufeff" {
		_, _ = in.Discard(3) // it was just peeked: it is there
	}
	return in, nil
}

// sniff tells the format from the first line and begins to read it.
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

// firstLine looks at the first line without taking it; only its beginning when
// it is longer than the buffer.
func firstLine(name string, in *bufio.Reader) (string, error) {
	head, err := in.Peek(in.Size())
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading %s:1: %w", name, err)
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	if text := strings.TrimSpace(string(line)); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("reading %s:1: the first line is empty: want a header or a JSON object", name)
}

// unknownFormat is the error for a first line that no format begins with.
func unknownFormat(name, first string) error {
	return fmt.Errorf("reading %s:1: unknown trace format, found %s: want one of %s",
		name, excerpt(first), strings.Join(Formats(), ", "))
}

// excerpt quotes a found value, shortened.
func excerpt(s string) string {
	const limit = 60
	if len(s) > limit {
		return fmt.Sprintf("%q...", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
