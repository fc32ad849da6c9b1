package workload

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
)

// csvFormat is a trace format with one request per row, by column names.
type csvFormat struct {
	name          string
	at            string
	moment        bool // at is a date and time, not seconds
	input, output string
	// Columns that may be missing; empty = not in the format.
	session, user, region, model, tier, sla string
}

// csvFormats are the known formats; the first whose required columns a header contains applies.
var csvFormats = []csvFormat{
	{name: "azure-2023", at: "t_s", input: "input_tokens", output: "output_tokens"},
	{name: "azure-2024", at: "timestamp", moment: true, input: "contexttokens", output: "generatedtokens"},
	{name: "burstgpt", at: "timestamp", input: "request tokens", output: "response tokens", session: "session id", model: "model"},
	{
		name: "sageserve", at: "arrival_timestamp", input: "prompt_size", output: "token_size",
		user: "client_tenant", region: "regions", model: "model_type", tier: "workload_type", sla: "sla",
	},
}

// header maps a lower-case column name to its index.
type header map[string]int

// has reports whether all columns are present.
func (h header) has(columns ...string) bool {
	for _, c := range columns {
		if _, ok := h[c]; !ok {
			return false
		}
	}
	return true
}

// records reads the rows of a CSV file and tracks the position.
type records struct {
	file    string
	in      *csv.Reader
	columns header
	record  []string
	names   []string // as in the file
	line    int
}

// openCSV opens a CSV trace in the format that its header determines.
func openCSV(name string, in *bufio.Reader, first string, o TraceOptions) (string, source, error) {
	r, err := newRecords(name, in)
	if err != nil {
		return "", nil, err
	}
	if f := r.requests(); f != nil {
		return f.name, sorted(name, &csvTrace{records: r, format: *f}), nil
	}
	if f := r.rates(); f != nil {
		s, err := openRates(r, *f, o)
		return f.name, s, err
	}
	return "", nil, unknownFormat(name, first, Formats())
}

// requests returns the request format of the header, nil if there is none.
func (r *records) requests() *csvFormat {
	for i, f := range csvFormats {
		if r.columns.has(f.at, f.input, f.output) {
			return &csvFormats[i]
		}
	}
	return nil
}

// rates returns the rate format of the header, nil if there is none.
func (r *records) rates() *rateFormat {
	for i, f := range rateFormats {
		if r.columns.has(f.columns...) {
			return &rateFormats[i]
		}
	}
	return nil
}

func newRecords(name string, in *bufio.Reader) (*records, error) {
	c := csv.NewReader(in)
	c.ReuseRecord = true
	c.TrimLeadingSpace = true
	c.FieldsPerRecord = -1 // checked in read, for its error message
	head, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("reading %s:1: header: %w", name, err)
	}
	columns, err := service.Columns(head) // without "", which formats use for a column that they lack
	if err != nil {
		return nil, fmt.Errorf("reading %s:1: %w", name, err)
	}
	r := &records{file: name, in: c, columns: columns}
	for _, column := range head {
		r.names = append(r.names, strings.TrimSpace(column))
	}
	return r, nil
}

// read advances to the next row; io.EOF at the end.
func (r *records) read() error {
	record, err := r.in.Read()
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if err != nil {
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			return fmt.Errorf("reading %s:%d: row: %w", r.file, bad.Line, bad.Err)
		}
		return fmt.Errorf("reading %s:%d: %w", r.file, r.line+1, err)
	}
	r.line, _ = r.in.FieldPos(0)
	if len(record) != len(r.names) {
		return fmt.Errorf("reading %s:%d: row: must have %d fields like the header, got %d", r.file, r.line, len(r.names), len(record))
	}
	r.record = record
	return nil
}

// field returns the text and position of a column, empty if the file lacks the column.
func (r *records) field(column string) (string, place) {
	i, ok := r.columns[column]
	if !ok {
		return "", place{r.file, r.line, column}
	}
	return strings.TrimSpace(r.record[i]), place{r.file, r.line, r.names[i]}
}

// csvTrace reads a trace with one request per row.
type csvTrace struct {
	*records
	format csvFormat
	rows   int
}

func (t *csvTrace) next() (TraceRow, error) {
	if err := t.read(); err != nil {
		return TraceRow{}, err
	}
	t.rows++
	row := TraceRow{Number: t.rows, Line: t.line}
	var err error
	if row.At, err = t.time(); err != nil {
		return TraceRow{}, err
	}
	if row.InputTokens, err = t.length(t.format.input); err != nil {
		return TraceRow{}, err
	}
	if row.OutputTokens, err = t.length(t.format.output); err != nil {
		return TraceRow{}, err
	}
	row.Session, _ = t.field(t.format.session)
	row.User, _ = t.field(t.format.user)
	row.Region, _ = t.field(t.format.region)
	row.Model, _ = t.field(t.format.model)
	row.Tier = t.tier()
	return row, nil
}

func (t *csvTrace) time() (time.Duration, error) {
	text, at := t.field(t.format.at)
	if t.format.moment {
		return at.moment(text)
	}
	return at.seconds(text, time.Second)
}

func (t *csvTrace) length(column string) (int, error) {
	text, at := t.field(column)
	return at.tokens(text)
}

// tier returns a row's latency class: its workload type if that is a tier (IW = IW-F), otherwise the
// class of its sla in seconds (SageServe 3: fast within a minute, normal within an hour, else
// deferred).
func (t *csvTrace) tier() service.Tier {
	kind, _ := t.field(t.format.tier)
	if strings.EqualFold(kind, "IW") {
		return service.TierFast
	}
	if tier, err := service.ParseTier(kind); err == nil && kind != "" {
		return tier
	}
	text, _ := t.field(t.format.sla)
	switch sla, err := strconv.ParseFloat(text, 64); {
	case err != nil:
		return ""
	case sla > 0 && sla <= 60:
		return service.TierFast
	case sla > 0 && sla <= 3600:
		return service.TierNormal
	}
	return service.TierDeferred
}
