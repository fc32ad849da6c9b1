package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

const (
	firstBuffer = 4 << 10
	// maxEvent bounds a line of a stream.
	maxEvent = 4 << 20
)

// errEventTooLong is the failure of a stream whose line never ends.
var errEventTooLong = errors.New("an event is longer than 4 MiB")

// lines splits a stream into lines, reading as much at a time as is there.
type lines struct {
	in         io.Reader
	buf        []byte
	start, end int // what is read and not yet given
	seen       int // how much of that holds no newline
}

// next gives a line without its end; it is valid until the next call. io.EOF
// comes after the last complete line: what a cut stream leaves is no line.
func (l *lines) next() ([]byte, error) {
	for {
		if i := bytes.IndexByte(l.buf[l.start+l.seen:l.end], '\n'); i >= 0 {
			line := l.buf[l.start : l.start+l.seen+i]
			l.start += l.seen + i + 1
			l.seen = 0
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
		l.seen = l.end - l.start
		if err := l.more(); err != nil {
			return nil, err
		}
	}
}

// more reads once, making room before it.
func (l *lines) more() error {
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
		return nil // the error, if any, comes again
	}
	return err
}

// usage is what a service says a request cost.
type usage struct {
	prompt, output, cached int
	hasCached              bool
}

// event is what a line of a stream means.
type event struct {
	// content is the piece of the answer as it stands in the JSON, escaped.
	content []byte
	// token tells that the model produced something: content, or thoughts that
	// are no part of the answer.
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

// parseEvent reads a line of an OpenAI stream by searching for the few keys that
// matter. That is exact: a quote inside a JSON string is escaped, so a key's
// quotes and the colon after it are found nowhere but at a key.
func parseEvent(line []byte) event {
	data, ok := bytes.CutPrefix(line, dataField)
	if !ok {
		return event{} // a comment, an event name, the empty line between events
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

// valueAt is what follows a key and its colon, from the given place on; next is
// where to go on searching.
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

// stringAt is the first string under a key that is not empty, still escaped.
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

// quoted is the inside of the string that value begins with.
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

// objectAt is the data from the object under a key on.
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

// intAt is the whole number under a key.
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

// errorAt is the message of an error event.
func errorAt(data []byte) (string, bool) {
	value, _, ok := valueAt(data, errorKey, 0)
	if !ok || len(value) == 0 || value[0] != '{' && value[0] != '"' {
		return "", false
	}
	return errorMessage(data), true
}

// errorMessage finds the message in an error body of OpenAI's shape, or of one
// like it; else it is the beginning of the body.
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

// shorten keeps a message to what fits into a line or two.
func shorten(s string) string {
	const limit = 200
	if len(s) > limit {
		return s[:limit] + "..."
	}
	return s
}

// appendUnescaped appends the text of an escaped JSON string. A string that is
// not valid JSON is appended as it stands.
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
