package job

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"unicode/utf8"
)

// maxCustomID is the maximum length of a custom_id in bytes; OpenAI documents none.
const maxCustomID = 512

// Line is one request of a batch.
type Line struct {
	Number   int    // in the file, from 1
	Offset   int64  // of its first byte in the file
	Bytes    int64  // with its line feed
	CustomID string // unique in the file
	Model    string
	Body     json.RawMessage
}

// LineError is an invalid line, or an input file that is invalid as a whole (Line 0).
type LineError struct {
	Line     int
	CustomID string // empty if unknown
	Code     string
	Param    string
	Message  string
}

// Error returns the place and the message.
func (e *LineError) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Message)
}

// Problem returns the error as a batch reports it.
func (e *LineError) Problem() Problem {
	p := Problem{Code: e.Code, Message: e.Message}
	if e.Line > 0 {
		p.Line = &e.Line
	}
	if e.Param != "" {
		p.Param = &e.Param
	}
	return p
}

// Reader reads the lines of a batch's input. It holds one line in memory, and the custom_ids.
type Reader struct {
	in       *bufio.Reader
	endpoint string
	limits   Limits
	// accepts reports whether a model can be requested; nil accepts all.
	accepts        func(model string) bool
	lineOfCustomID map[string]int // custom_id -> line
	number         int
	offset         int64
	count          int
	buf            []byte
}

// NewReader returns a reader of the lines for an endpoint.
func NewReader(in io.Reader, endpoint string, limits Limits, accepts func(model string) bool) *Reader {
	return &Reader{in: bufio.NewReaderSize(in, 64<<10), endpoint: endpoint, limits: limits, accepts: accepts, lineOfCustomID: map[string]int{}}
}

// SkipTo sets the position of a reader that starts within a file: the next line has this number and offset.
func (r *Reader) SkipTo(number int, offset int64) { r.number, r.offset = number-1, offset }

// Next returns the next line; Body is valid until the next call. It returns io.EOF at the end of the
// file, a *LineError for an invalid line, after which reading can continue, and any other error of the
// underlying reader, after which it cannot. Blank lines are skipped.
func (r *Reader) Next() (Line, error) {
	for {
		start := r.offset
		text, tooLong, err := r.readLine()
		if err != nil {
			return Line{}, err
		}
		if !tooLong && len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		if r.count++; r.count > r.limits.Requests {
			return Line{}, &LineError{Line: r.number, Code: "too_many_requests", Message: fmt.Sprintf("a batch must have at most %d requests", r.limits.Requests)}
		}
		if tooLong {
			return Line{}, &LineError{Line: r.number, Code: "line_too_large", Message: fmt.Sprintf("must have at most %d bytes", r.limits.LineBytes)}
		}
		line, bad := r.parse(text)
		if bad != nil {
			return Line{}, bad
		}
		line.Offset, line.Bytes = start, r.offset-start
		return line, nil
	}
}

// readLine reads a line into r.buf. It skips the rest of a line that is too long.
func (r *Reader) readLine() (text []byte, tooLong bool, err error) {
	r.buf = r.buf[:0]
	read := false
	if start, _ := r.in.Peek(3); r.offset == 0 && string(start) == "\xef\xbb\xbf" { // a byte order mark
		n, _ := r.in.Discard(len(start)) // it is buffered
		r.offset += int64(n)
	}
	for {
		part, err := r.in.ReadSlice('\n')
		r.offset += int64(len(part))
		read = read || len(part) > 0
		if tooLong = tooLong || len(r.buf)+len(part) > r.limits.LineBytes+1; !tooLong {
			r.buf = append(r.buf, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && !read:
			return nil, false, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return nil, false, err
		}
		r.number++
		return r.buf, tooLong, nil
	}
}

// parse validates a line.
func (r *Reader) parse(text []byte) (Line, *LineError) {
	var in struct {
		CustomID *string         `json:"custom_id"`
		Method   *string         `json:"method"`
		URL      *string         `json:"url"`
		Body     json.RawMessage `json:"body"`
	}
	bad := func(code, param, message string) *LineError {
		e := &LineError{Line: r.number, Code: code, Param: param, Message: message}
		if in.CustomID != nil {
			e.CustomID = Truncate(*in.CustomID)
		}
		return e
	}
	if !utf8.Valid(text) {
		return Line{}, bad("invalid_json_line", "", "must be UTF-8")
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return Line{}, bad("invalid_json_line", "", "must be a JSON object with custom_id, method, url and body: "+err.Error())
	}
	switch {
	case in.CustomID == nil || *in.CustomID == "":
		return Line{}, bad("missing_required_parameter", "custom_id", "custom_id: is required")
	case len(*in.CustomID) > maxCustomID:
		return Line{}, bad("invalid_value", "custom_id", fmt.Sprintf("custom_id: must have at most %d bytes, got %d", maxCustomID, len(*in.CustomID)))
	}
	if first, taken := r.lineOfCustomID[*in.CustomID]; taken {
		return Line{}, bad("duplicate_custom_id", "custom_id", fmt.Sprintf("custom_id: must be unique in the file, line %d has it too", first))
	}
	r.lineOfCustomID[*in.CustomID] = r.number
	if in.Method == nil || *in.Method != "POST" {
		return Line{}, bad("invalid_method", "method", "method: must be POST")
	}
	if in.URL == nil || !sameEndpoint(*in.URL, r.endpoint) {
		return Line{}, bad("mismatched_endpoint", "url", "url: must be the endpoint of the batch, "+r.endpoint)
	}
	var body struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	if len(in.Body) == 0 || in.Body[0] != '{' {
		return Line{}, bad("invalid_request", "body", "body: must be a JSON object")
	}
	if err := json.Unmarshal(in.Body, &body); err != nil {
		return Line{}, bad("invalid_request", "body", "body: "+err.Error())
	}
	switch {
	case body.Model == "":
		return Line{}, bad("missing_required_parameter", "body.model", "body.model: is required")
	case body.Stream:
		return Line{}, bad("invalid_value", "body.stream", "body.stream: must be false in a batch")
	case r.accepts != nil && !r.accepts(body.Model):
		return Line{}, bad("model_not_found", "body.model", fmt.Sprintf("body.model: %q does not exist", Truncate(body.Model)))
	}
	return Line{Number: r.number, CustomID: *in.CustomID, Model: body.Model, Body: in.Body}, nil
}

// sameEndpoint reports whether a line's URL, a path or a whole URL, is that of the endpoint.
func sameEndpoint(text, endpoint string) bool {
	if text == endpoint {
		return true
	}
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && u.Path == endpoint && u.RawQuery == ""
}

// LineCounter counts lines that are not blank, as it is written to. The zero value is ready.
type LineCounter struct {
	lines int
	begun bool // the current line has a character that is no white space
}

// Write counts the lines of p; it never fails.
func (c *LineCounter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		c.begun = c.begun || len(bytes.TrimSpace(line)) > 0
		if ended && c.begun {
			c.lines, c.begun = c.lines+1, false
		}
		rest = after
	}
	return len(p), nil
}

// Lines returns the number of lines; the last one needs no line feed.
func (c *LineCounter) Lines() int {
	if c.begun {
		return c.lines + 1
	}
	return c.lines
}

// Input is a valid input file.
type Input struct {
	Chunks []Chunk
	Load   []ModelInput // sorted by model
}

// Validate reads a whole input file. It returns the input if every line is valid. Otherwise it returns the
// first MaxProblems errors, and passes every error to onError if that is not nil. err is an error of the
// reader, or of onError.
func Validate(r *Reader, onError func(*LineError) error) (in Input, problems []Problem, err error) {
	c := chunker{}
	models := map[string]ModelInput{}
	for {
		line, err := r.Next()
		var invalid *LineError
		switch {
		case err == nil:
			c.addLine(line)
			l := models[line.Model]
			models[line.Model] = ModelInput{line.Model, l.Requests + 1, l.Bytes + line.Bytes}
			continue
		case errors.Is(err, io.EOF):
			if r.count == 0 {
				problems = []Problem{(&LineError{Code: "empty_file", Message: "the input file must contain at least one request"}).Problem()}
			}
			if len(problems) > 0 {
				return Input{}, problems, nil
			}
			in.Chunks = c.chunks
			for _, name := range slices.Sorted(maps.Keys(models)) {
				in.Load = append(in.Load, models[name])
			}
			return in, nil, nil
		case !errors.As(err, &invalid):
			return Input{}, nil, err
		}
		if len(problems) < MaxProblems {
			problems = append(problems, invalid.Problem())
		}
		if onError != nil {
			if err := onError(invalid); err != nil {
				return Input{}, nil, err
			}
		}
		if invalid.Code == "too_many_requests" {
			return Input{}, problems, nil
		}
	}
}

// MaxProblems is the number of errors that a batch lists; its error file contains all.
const MaxProblems = 100

// Bounds of a chunk: what one claim covers. A balancer that dies repeats at most the requests of a chunk
// that were in flight, so the bounds only limit the work of a claim and the size of the record.
const (
	chunkLines = 64
	chunkBytes = 8 << 20
)

// chunker divides the lines of a file into chunks.
type chunker struct {
	chunks []Chunk
	end    int64
}

func (c *chunker) addLine(l Line) {
	last := len(c.chunks) - 1
	if last < 0 || c.chunks[last].Lines == chunkLines || c.chunks[last].Bytes+l.Bytes > chunkBytes {
		c.chunks = append(c.chunks, Chunk{Skip: l.Offset - c.end})
		last++
	} else {
		c.chunks[last].Bytes += l.Offset - c.end // blank lines
	}
	c.chunks[last].Lines++
	c.chunks[last].Bytes += l.Bytes
	c.end = l.Offset + l.Bytes
}
