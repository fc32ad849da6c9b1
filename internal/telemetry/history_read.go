package telemetry

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
)

// maxHistoryBytes is the maximum size of a history as text, of a file after unpacking: about five million rows, or six weeks of 30
// balancers with one model.
const maxHistoryBytes = 512 << 20

// TierInteractive is the tier of history that does not distinguish fast from normal
// interactive requests, such as SageServe's published traces.
const TierInteractive service.Tier = "IW"

// ParseTier parses the tier of a history: those of service.ParseTier, and TierInteractive.
func ParseTier(text string) (service.Tier, error) {
	if service.Tier(text) == TierInteractive {
		return TierInteractive, nil
	}
	tier, err := service.ParseTier(text)
	if err != nil {
		err = errors.New("must be fast (IW-F), normal (IW-N), deferred (NIW) or IW (fast and normal)")
	}
	return tier, err
}

// maxMinute is the year 2200: a later minute is a number of seconds or milliseconds.
var maxMinute = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).Unix() / 60

// ReadHistory reads a history file, plain or gzipped. name is used in errors. It accepts
//
//   - CSV with a header: minute (since 1970) or at (RFC 3339), model and
//     prompt_tokens; and, where known, region (else "all"), tier (else IW-F),
//     balancer, cached_tokens, requests, output_tokens; other columns are
//     ignored. SageServe's minute,model,tier,prompt_tokens,exact is of this kind.
//   - JSON: one Point after another, or the response of GET /v1/history.
//
// Errors contain the file, the line, the field and its value.
func ReadHistory(name string, r io.Reader) ([]Point, error) {
	data, err := readAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading history %s: %w", name, err)
	}
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	switch {
	case len(trimmed) == 0:
		return nil, fmt.Errorf("reading history %s: the file is empty", name)
	case trimmed[0] == '{' || trimmed[0] == '[':
		return readJSON(name, data)
	}
	return readCSV(name, data)
}

// readAll reads r to its end and unpacks gzip, up to maxHistoryBytes.
func readAll(r io.Reader) ([]byte, error) {
	br := bufio.NewReader(r)
	var in io.Reader = br
	if magic, err := br.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		gz, err := gzip.NewReader(br)
		if err != nil {
			return nil, err
		}
		in = gz // needs no Close: it has no resources to free
	}
	data, err := io.ReadAll(io.LimitReader(in, maxHistoryBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxHistoryBytes {
		return nil, fmt.Errorf("the unpacked file must have at most %d MiB", maxHistoryBytes>>20)
	}
	return data, nil
}

// place is a line of a history file, for errors in a common format.
type place struct {
	name string
	line int
}

func (p place) errorf(field, rule, got string) error {
	return fmt.Errorf("reading history %s:%d: %s %s, got %q", p.name, p.line, field, rule, got)
}

// jsonError returns the error of the decoder without the names of Go's types.
func (p place) jsonError(err error) error {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return fmt.Errorf("reading history %s:%d: %w", p.name, p.line, err)
	}
	field := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:] // without the embedded struct
	switch {
	case kind.Type.Kind() == reflect.Struct:
		return fmt.Errorf("reading history %s:%d: must be an object, got a JSON %s", p.name, p.line, kind.Value)
	case kind.Type.Kind() == reflect.String:
		return fmt.Errorf("reading history %s:%d: %s: must be a string, got a JSON %s", p.name, p.line, field, kind.Value)
	case kind.Type.Kind() == reflect.Int64:
		return fmt.Errorf("reading history %s:%d: %s: must be a number, got a JSON %s", p.name, p.line, field, kind.Value)
	}
	return fmt.Errorf("reading history %s:%d: %s: has the wrong type, got a JSON %s", p.name, p.line, field, kind.Value)
}

// checkPoint sets defaults and validates a point.
func checkPoint(p *Point, at place) error {
	if p.Model == "" {
		return at.errorf("model", "must not be empty", "")
	}
	if p.Region == "" {
		p.Region = service.AnyRegion
	}
	tier, err := ParseTier(string(p.Tier))
	if err != nil {
		return at.errorf("tier", err.Error(), string(p.Tier))
	}
	p.Tier = tier
	if p.Minute >= maxMinute {
		return at.errorf("minute", "must be before the year 2200 (minutes since 1970, not seconds)", strconv.FormatInt(p.Minute, 10))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"minute", p.Minute},
		{"prompt_tokens", p.PromptTokens},
		{"cached_tokens", p.CachedTokens},
		{"requests", p.Requests},
		{"output_tokens", p.OutputTokens},
	} {
		if f.value < 0 {
			return at.errorf(f.name, "must not be negative", strconv.FormatInt(f.value, 10))
		}
	}
	if p.CachedTokens > p.PromptTokens {
		return at.errorf("cached_tokens", fmt.Sprintf("must not exceed prompt_tokens (%d)", p.PromptTokens), strconv.FormatInt(p.CachedTokens, 10))
	}
	return nil
}

// jsonPoint is a Point whose missing fields can be detected.
type jsonPoint struct {
	Point
	Minute       *int64 `json:"minute"`
	PromptTokens *int64 `json:"prompt_tokens"`
}

func readJSON(name string, data []byte) ([]Point, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	var out []Point
	for {
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		end := int(dec.InputOffset())
		if err != nil {
			return nil, fmt.Errorf("reading history %s:%d: %w", name, lineAt(data, end), err)
		}
		at := place{name, lineAt(data, end-len(raw))}
		if out, err = appendJSON(out, raw, at); err != nil {
			return nil, err
		}
	}
}

func lineAt(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(offset, len(data))], []byte{'\n'})
}

// appendJSON appends the points of one JSON value: a point, a list of points, or a response
// of the admin API.
func appendJSON(out []Point, raw json.RawMessage, at place) ([]Point, error) {
	if raw[0] == '[' {
		var list []jsonPoint
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, at.jsonError(err)
		}
		return appendPoints(out, list, at)
	}
	var p struct {
		jsonPoint
		Points *[]jsonPoint `json:"points"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, at.jsonError(err)
	}
	if p.Points != nil {
		return appendPoints(out, *p.Points, at)
	}
	return appendPoints(out, []jsonPoint{p.jsonPoint}, at)
}

func appendPoints(out []Point, list []jsonPoint, at place) ([]Point, error) {
	for _, p := range list {
		point, err := p.point(at)
		if err != nil {
			return nil, err
		}
		out = append(out, point)
	}
	return out, nil
}

func (p jsonPoint) point(at place) (Point, error) {
	if p.Minute == nil {
		return Point{}, at.errorf("minute", "must be a whole number of minutes since 1970", "")
	}
	if p.PromptTokens == nil {
		return Point{}, at.errorf("prompt_tokens", "must be a count", "")
	}
	p.Point.Minute, p.Point.PromptTokens = *p.Minute, *p.PromptTokens
	err := checkPoint(&p.Point, at)
	return p.Point, err
}

// csvHistory is a CSV file being read: its columns, and the line of each point's identity.
type csvHistory struct {
	name    string
	columns map[string]int
	seen    map[string]int
}

func readCSV(name string, data []byte) ([]Point, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.ReuseRecord, r.TrimLeadingSpace = true, true
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("reading history %s: %w", name, err)
	}
	h := csvHistory{name: name, seen: map[string]int{}}
	if h.columns, err = service.Columns(header); err != nil {
		return nil, fmt.Errorf("reading history %s:1: %w", name, err)
	}
	if err := h.checkHeader(header); err != nil {
		return nil, err
	}
	var out []Point
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading history %s: %w", name, err)
		}
		line, _ := r.FieldPos(0)
		p, err := h.point(record, line)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
}

func (h *csvHistory) checkHeader(header []string) error {
	at := place{h.name, 1}
	has := func(c string) bool { _, ok := h.columns[c]; return ok }
	columns := strings.Join(header, ",")
	if !has("minute") && !has("at") {
		return at.errorf("header", `must contain the column "minute" or "at"`, columns)
	}
	for _, c := range []string{"model", "prompt_tokens"} {
		if !has(c) {
			return at.errorf("header", "must contain the column "+strconv.Quote(c), columns)
		}
	}
	return nil
}

// field returns a record's value in a column, empty if there is no such column.
func (h *csvHistory) field(record []string, column string) string {
	i, ok := h.columns[column]
	if !ok {
		return ""
	}
	return strings.TrimSpace(record[i])
}

func (h *csvHistory) point(record []string, line int) (Point, error) {
	at := place{h.name, line}
	p := Point{
		Balancer: h.field(record, "balancer"), Region: service.Region(h.field(record, "region")),
		Model: h.field(record, "model"), Tier: service.Tier(h.field(record, "tier")),
	}
	var err error
	if p.Minute, err = h.minute(record, at); err != nil {
		return p, err
	}
	for _, c := range []struct {
		name string
		to   *int64
	}{
		{"prompt_tokens", &p.PromptTokens},
		{"cached_tokens", &p.CachedTokens},
		{"requests", &p.Requests},
		{"output_tokens", &p.OutputTokens},
	} {
		text := h.field(record, c.name)
		if text == "" && c.name != "prompt_tokens" {
			continue
		}
		if *c.to, err = parseCount(text); err != nil {
			return p, at.errorf(c.name, err.Error(), text)
		}
	}
	if err := checkPoint(&p, at); err != nil {
		return p, err
	}
	id := strings.Join([]string{strconv.FormatInt(p.Minute, 10), p.Balancer, string(p.Region), p.Model, string(p.Tier)}, "\x00")
	if before, dup := h.seen[id]; dup {
		return p, at.errorf("row", fmt.Sprintf("must differ from line %d in minute, region, model or tier (or add a balancer column to sum such rows)", before), strings.Join(slices.Clone(record), ","))
	}
	h.seen[id] = line
	return p, nil
}

func (h *csvHistory) minute(record []string, at place) (int64, error) {
	if _, ok := h.columns["minute"]; ok {
		text := h.field(record, "minute")
		m, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, at.errorf("minute", "must be a whole number of minutes since 1970", text)
		}
		return m, nil
	}
	text := h.field(record, "at")
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, at.errorf("at", "must be a time with its offset from UTC such as 2025-01-31T12:00:00Z or 2025-01-31T13:00:00+01:00", text)
	}
	return t.Unix() / 60, nil
}

// maxTokens bounds a count so that sums of them are exact.
const maxTokens = 1e15

// parseCount parses a count, which may be written as a decimal number.
func parseCount(text string) (int64, error) {
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(f) || math.IsInf(f, 0):
		return 0, errors.New("must be a count")
	case f > maxTokens:
		return 0, fmt.Errorf("must be at most %g", float64(maxTokens))
	}
	return int64(math.Round(f)), nil
}
