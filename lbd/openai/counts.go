package openai

import (
	"bytes"

	"skyserve/internal/service"
)

// SupportsUsageCounts reports whether an engine of a kind returns the usage so far with each event if
// stream_options.continuous_usage_stats is set: vLLM since 0.5.4, SGLang since the end of 2025;
// older ones ignore it. Others may reject an unknown option.
func SupportsUsageCounts(kind service.EngineKind) bool {
	return kind == service.EngineVLLM || kind == service.EngineSGLang || kind == service.EngineSim
}

const keyCounts = `"continuous_usage_stats"`

// The text that requestCounts writes.
var (
	countsMember = []byte(keyCounts + `:true,`)
	countsValue  = []byte("true")
)

// countsRequested reports whether the client requests the usage so far with each event.
func (c *Call) countsRequested() bool {
	options := c.streamOptions.of(c.body)
	if kindOf(options) != '{' {
		return false
	}
	for _, name := range []string{`"include_usage"`, keyCounts} {
		if v, found := memberSpan(options, name); !found || kindOf(v.of(options)) != 't' {
			return false
		}
	}
	return true
}

// requestCounts returns the edit that requests the usage so far with each event. It applies to the
// body after edits, which request the final usage; its text is empty if there are no options to
// edit.
func (c *Call) requestCounts(edits []Edit) Edit {
	raw := c.streamOptions.of(c.body)
	switch kindOf(raw) {
	case 0:
		for _, e := range edits {
			if at := bytes.IndexByte(e.With, '{'); at >= 0 && e.From == e.To {
				at += e.From + Growth(edits, e.From) - len(e.With) + 1 // an edit may end where this one begins
				return Edit{Span{at, at}, countsMember}
			}
		}
	case 'n', '{':
		if v, found := memberSpan(raw, keyCounts); kindOf(raw) == '{' && found {
			v.From, v.To = v.From+c.streamOptions.From, v.To+c.streamOptions.From
			grown := Growth(edits, v.From)
			return Edit{Span{v.From + grown, v.To + grown}, countsValue}
		}
		at := c.streamOptions.From + Growth(edits, c.streamOptions.From) + 1
		return Edit{Span{at, at}, countsMember}
	}
	return Edit{}
}

// Growth returns the number of bytes by which the edits that end at or before an offset move it.
func Growth(edits []Edit, at int) (n int) {
	for _, e := range edits {
		if e.To <= at {
			n += len(e.With) - (e.To - e.From)
		}
	}
	return n
}

// WithoutCounts appends an event to dst without the usage so far.
func WithoutCounts(dst, event, data []byte, counts Span) []byte {
	at, inside := offsetOf(event, data)
	if !inside { // the event has several data lines
		return appendEvent(dst, append(append([]byte(nil), data[:counts.From]...), data[counts.To:]...))
	}
	dst = append(dst, event[:at+counts.From]...)
	return append(dst, event[at+counts.To:]...)
}

// offsetOf returns the offset of a subslice in a slice.
func offsetOf(whole, part []byte) (at int, inside bool) {
	at = cap(whole) - cap(part)
	if at < 0 || at+len(part) > len(whole) || len(part) == 0 || &whole[at] != &part[0] {
		return 0, false
	}
	return at, true
}

// memberAt returns the span of an object's member with the comma that separates it from the others;
// the zero Span if key and value are not subslices of the object.
func memberAt(object, key, value []byte) Span {
	from, ok := offsetOf(object, key)
	to, ok2 := offsetOf(object, value)
	if !ok || !ok2 {
		return Span{}
	}
	to += len(value)
	if before := len(bytes.TrimRight(object[:from], " \t\r\n")); before > 0 && object[before-1] == ',' {
		return Span{before - 1, to}
	}
	if rest := bytes.TrimLeft(object[to:], " \t\r\n"); len(rest) > 0 && rest[0] == ',' {
		to = len(object) - len(rest) + 1
	}
	return Span{from, to}
}
