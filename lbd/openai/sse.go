package openai

import "bytes"

// Splitter finds the ends of events in a stream of server-sent events (WHATWG HTML, section 9.2)
// that arrives in pieces: at an empty line. Lines end in LF, CRLF or CR; a CR that is the last byte
// so far waits for the next one.
type Splitter struct {
	line int // start of the current line
	at   int // where the search continues
}

// Next returns the end of the first event of b, including its empty line; ok is false if the event
// is incomplete. b must begin at the end of the previous event; later calls may only append to it.
func (s *Splitter) Next(b []byte) (end int, ok bool) {
	for {
		i := lineEnd(b, s.at)
		if i < 0 {
			s.at = len(b)
			return 0, false
		}
		after := i + 1
		if b[i] == '\r' {
			if after == len(b) {
				s.at = i
				return 0, false
			}
			if b[after] == '\n' {
				after++
			}
		}
		empty := i == s.line
		s.line, s.at = after, after
		if empty {
			*s = Splitter{}
			return after, true
		}
	}
}

// lineEnd returns the first LF or CR at or after from, -1 if there is none.
func lineEnd(b []byte, from int) int {
	lf := bytes.IndexByte(b[from:], '\n')
	line := b[from:]
	if lf >= 0 {
		line = line[:lf]
	}
	if cr := bytes.IndexByte(line, '\r'); cr >= 0 {
		return from + cr
	}
	if lf >= 0 {
		return from + lf
	}
	return -1
}

// EventData returns the data of an event, with several data lines joined by LF; nil if it has no
// data.
func EventData(event []byte) []byte {
	var data []byte
	several := false
	for len(event) > 0 {
		i := lineEnd(event, 0)
		line := event
		if i < 0 {
			event = nil
		} else {
			line, event = event[:i], event[i+1:]
		}
		value, ok := dataField(line)
		switch {
		case !ok:
		case data == nil:
			data = value
		default:
			if !several {
				data, several = bytes.Clone(data), true
			}
			data = append(append(data, '\n'), value...)
		}
	}
	return data
}

func dataField(line []byte) ([]byte, bool) {
	value, ok := bytes.CutPrefix(line, []byte("data"))
	if !ok {
		return nil, false
	}
	if len(value) == 0 {
		return value, true
	}
	if value[0] != ':' {
		return nil, false
	}
	value = value[1:]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return value, true
}

// IsPartial reports whether an event is truncated within a line or its data.
func IsPartial(event []byte) bool {
	data := EventData(event)
	if data == nil {
		return lineEnd(event, len(event)-1) < 0
	}
	in := cursor{data: data}
	if in.peek() != '{' {
		return string(data) != "[DONE]"
	}
	_, err := in.value()
	return err != nil
}

// EndsStream reports whether an event is the end of a stream of the endpoint.
func (e *Endpoint) EndsStream(event []byte) bool {
	a := Answer{Messages: e.Messages}
	a.Event(EventData(event))
	return a.Done || a.Failed
}
