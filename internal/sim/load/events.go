package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

const (
	firstBuffer = 4 << 10
	// maxEvent limits a line of a stream.
	maxEvent = 4 << 20
)

// errEventTooLong is the error of a stream with a line longer than maxEvent.
var errEventTooLong = errors.New("event longer than 4 MiB")

// lines splits a stream into lines and reads as much as is available at a time.
type lines struct {
	in         io.Reader
	buf        []byte
	start, end int // read but not yet returned
	scanned    int // length of its prefix known to contain no newline
}

// nextLine returns a line without its end, valid until the next call. It returns io.EOF after the last
// complete line and ignores an incomplete one.
func (l *lines) nextLine() ([]byte, error) {
	for {
		if i := bytes.IndexByte(l.buf[l.start+l.scanned:l.end], '\n'); i >= 0 {
			line := l.buf[l.start : l.start+l.scanned+i]
			l.start += l.scanned + i + 1
			l.scanned = 0
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
		l.scanned = l.end - l.start
		if err := l.fill(); err != nil {
			return nil, err
		}
	}
}

// fill reads once, after making space in the buffer.
func (l *lines) fill() error {
	if l.start > 0 {
		copy(l.buf, l.buf[l.start:l.end])
		l.start, l.end = 0, l.end-l.start
	}
	if l.end == len(l.buf) {
		if len(l.buf) >= maxEvent {
			return errEventTooLong
		}
		l.buf = append(l.buf, make([]byte, max(firstBuffer, len(l.buf)))...)
	}
	n, err := l.in.Read(l.buf[l.end:])
	l.end += n
	if n > 0 {
		return nil // the next read returns the error again, if any
	}
	return err
}

// usage is the token usage that a service reports for a request.
type usage struct {
	prompt, output, cached int
	hasCached              bool
}

// event is a parsed line of a stream.
type event struct {
	// content is the escaped JSON string of a piece of the response.
	content []byte
	// token reports that the model produced output: content, or reasoning, which is not part of the
	// response.
	token bool
	usage *usage
	done  bool
	// failure is the message of an error event.
	failure string
	failed  bool
}

var (
	dataField    = []byte("data:")
	doneMark     = []byte("[DONE]")
	contentKey   = []byte(`"content"`)
	reasoningKey = []byte(`"reasoning_content"`)
	usageKey     = []byte(`"usage"`)
	errorKey     = []byte(`"error"`)
	promptKey    = []byte(`"prompt_tokens"`)
	outputKey    = []byte(`"completion_tokens"`)
	cachedKey    = []byte(`"cached_tokens"`)
)

// parseEvent parses a line of an OpenAI stream by searching for the few relevant keys. That is exact:
// quotes inside a JSON string are escaped, so a quoted key followed by a colon is always a key.
func parseEvent(line []byte) event {
	data, ok := bytes.CutPrefix(line, dataField)
	if !ok {
		return event{} // a comment, an event name, or the empty line between events
	}
	data = bytes.TrimSpace(data)
	if bytes.Equal(data, doneMark) {
		return event{done: true}
	}
	var e event
	e.content, e.token = stringAt(data, contentKey)
	if !e.token {
		_, e.token = stringAt(data, reasoningKey)
	}
	if object, ok := objectAt(data, usageKey); ok {
		e.usage = parseUsage(object)
	}
	if !e.token {
		e.failure, e.failed = errorAt(data)
	}
	return e
}

// valueAt returns the data after a key and its colon, searching from from; next is where to continue.
func valueAt(data, key []byte, from int) (value []byte, next int, ok bool) {
	for {
		i := bytes.Index(data[from:], key)
		if i < 0 {
			return nil, len(data), false
		}
		from += i + len(key)
		rest := bytes.TrimLeft(data[from:], " \t")
		if len(rest) > 0 && rest[0] == ':' {
			return bytes.TrimLeft(rest[1:], " \t"), from, true
		}
	}
}

// stringAt returns the first non-empty string value of a key, still escaped.
func stringAt(data, key []byte) ([]byte, bool) {
	for from := 0; ; {
		value, next, ok := valueAt(data, key, from)
		if !ok {
			return nil, false
		}
		if text, ok := quoted(value); ok && len(text) > 0 {
			return text, true
		}
		from = next
	}
}

// quoted returns the contents of the string at the start of value.
func quoted(value []byte) ([]byte, bool) {
	if len(value) == 0 || value[0] != '"' {
		return nil, false
	}
	for i := 1; i < len(value); i++ {
		switch value[i] {
		case '\\':
			i++
		case '"':
			return value[1:i], true
		}
	}
	return nil, false
}

// objectAt returns the data from the start of the object value of a key.
func objectAt(data, key []byte) ([]byte, bool) {
	value, _, ok := valueAt(data, key, 0)
	return value, ok && len(value) > 0 && value[0] == '{'
}

func parseUsage(object []byte) *usage {
	u := &usage{}
	u.prompt, _ = intAt(object, promptKey)
	u.output, _ = intAt(object, outputKey)
	u.cached, u.hasCached = intAt(object, cachedKey)
	return u
}

// intAt returns the integer value of a key.
func intAt(data, key []byte) (int, bool) {
	value, _, ok := valueAt(data, key, 0)
	if !ok {
		return 0, false
	}
	end := 0
	for end < len(value) && '0' <= value[end] && value[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(string(value[:end]))
	return n, err == nil
}

// errorAt returns the message of an error event.
func errorAt(data []byte) (string, bool) {
	value, _, ok := valueAt(data, errorKey, 0)
	if !ok || len(value) == 0 || value[0] != '{' && value[0] != '"' {
		return "", false
	}
	return errorMessage(data), true
}

// errorMessage returns the message in an error body in OpenAI's format, or a similar one; otherwise the
// start of the body.
func errorMessage(body []byte) string {
	var outer struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(body, &outer) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		var text string
		switch {
		case json.Unmarshal(outer.Error, &inner) == nil && inner.Message != "":
			return shorten(inner.Message)
		case json.Unmarshal(outer.Error, &text) == nil && text != "":
			return shorten(text)
		case outer.Message != "":
			return shorten(outer.Message)
		}
	}
	return shorten(string(bytes.TrimSpace(body)))
}

// shorten truncates a message to a line or two.
func shorten(s string) string {
	const limit = 200
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}

// appendUnescaped appends the text of an escaped JSON string. Invalid JSON is appended unchanged.
func appendUnescaped(dst, escaped []byte) []byte {
	if bytes.IndexByte(escaped, '\\') < 0 {
		return append(dst, escaped...)
	}
	whole := make([]byte, 0, len(escaped)+2)
	whole = append(append(append(whole, '"'), escaped...), '"')
	var text string
	if json.Unmarshal(whole, &text) != nil {
		return append(dst, escaped...)
	}
	return append(dst, text...)
}
