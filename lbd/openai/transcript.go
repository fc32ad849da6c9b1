package openai

import (
	"bytes"

	"skyserve/lbd/buffer"
)

// Transcript is what a client has of a streamed answer that can be continued
// elsewhere when its target fails. A nil one belongs to an answer that cannot.
type Transcript struct {
	// hasText is the pieces of the answer as JSON writes them, without their quotes:
	// in a row they are one string again. Nil before the first and after the loss.
	text *buffer.Buffer
	// Memory accounts for the text; nil = nothing does. BytesLeft is how many bytes may still
	// enter it.
	Memory    TextMemory
	BytesLeft int
	head      chunkHead
	roleKnown      bool // the client knows whose turn it is, by a word or by the text
	// ended: the reason why the answer came to its end has passed; closed: so has
	// the end of the stream.
	ended, closed bool
	// lost: the answer holds what no prompt can begin with (a tool call, a thought,
	// a text that is too long to be kept), so that it cannot be continued.
	lost bool
}

// TextMemory bounds the bytes that a transcript takes.
type TextMemory interface {
	// Set makes it take so many bytes; with an error it takes what it took before.
	Set(bytes int64) error
	// Release gives all of them back.
	Release()
}

// Lost reports whether the answer cannot be continued.
func (s *Transcript) Lost() bool { return s.lost }

// Ended reports whether the answer has come to its end.
func (s *Transcript) Ended() bool { return s.ended }

// Ending is what the client has not seen of a stream whose answer is complete.
func (s *Transcript) Ending(e *Endpoint) []byte {
	var b []byte
	if !s.ended {
		b = append(b, "data: {"...)
		for _, m := range []struct {
			name  string
			value []byte
		}{{`"id":`, s.head.id}, {`"created":`, s.head.created}, {`"model":`, s.head.model}} {
			if m.value != nil {
				b = append(append(append(b, m.name...), m.value...), ',')
			}
		}
		b = append(append(b, e.boundReached...), "}\n\n"...)
	}
	if !s.closed {
		b = append(b, "data: [DONE]\n\n"...)
	}
	return b
}

// chunkHead is what every chunk of one answer repeats, as JSON writes it; nil where it
// was not said.
type chunkHead struct{ id, created, model []byte }

// recordHead keeps what the first chunk says of the answer.
func (s *Transcript) recordHead(key, value []byte) {
	if s == nil {
		return
	}
	field := s.head.field(key)
	if field != nil && *field == nil {
		*field = bytes.Clone(value)
	}
}

// field is where a chunk's value is kept, nil for one that is not.
func (h *chunkHead) field(key []byte) *[]byte {
	switch string(key) {
	case `"id"`:
		return &h.id
	case `"created"`:
		return &h.created
	case `"model"`:
		return &h.model
	}
	return nil
}

// appendText adds a quoted piece of the answer.
func (s *Transcript) appendText(quoted []byte) {
	if s == nil || s.lost {
		return
	}
	piece := quoted[1 : len(quoted)-1]
	if len(piece) > s.BytesLeft {
		s.Discard()
		return
	}
	s.BytesLeft -= len(piece)
	s.roleKnown = true
	if s.text == nil || cap(s.text.B)-len(s.text.B) < len(piece) {
		if !s.reserve(len(piece)) {
			s.Discard()
			return
		}
	}
	s.text.B = append(s.text.B, piece...)
}

// reserve makes room for n bytes more of the text, twice as much as there was at least, as it
// comes in small pieces; false where there is no memory for that.
func (s *Transcript) reserve(n int) bool {
	want := max(n, buffer.MinSize)
	if s.text != nil {
		want = max(len(s.text.B)+n, 2*cap(s.text.B))
	}
	size := buffer.SizeFor(want)
	if s.Memory != nil && s.Memory.Set(int64(size)) != nil {
		return false
	}
	if s.text == nil {
		s.text = buffer.Get(size)
	} else {
		s.text.GrowTo(size)
	}
	return true
}

// Text is the text as JSON writes it, without quotes.
func (s *Transcript) Text() []byte {
	if s.text == nil {
		return nil
	}
	return s.text.B
}

// recordRole notes that the client was told whose turn it is.
func (s *Transcript) recordRole() {
	if s != nil {
		s.roleKnown = true
	}
}

// markEnded notes that the answer has come to its end.
func (s *Transcript) markEnded() {
	if s != nil {
		s.ended = true
	}
}

// markClosed notes that the stream has.
func (s *Transcript) markClosed() {
	if s != nil {
		s.ended, s.closed = true, true
	}
}

// Discard gives up hope and memory.
func (s *Transcript) Discard() {
	if s != nil {
		s.lost = true
		s.Release()
	}
}

// Release lets go of the text.
func (s *Transcript) Release() {
	if s.text == nil {
		return
	}
	s.text.Release()
	s.text = nil
	if s.Memory != nil {
		s.Memory.Release()
	}
}

// SplitSpace parts a text, as JSON writes it, from the white space at its end.
func SplitSpace(raw []byte) (rest, space []byte) {
	end := len(raw)
	for end > 0 {
		n := spaceBefore(raw[:end])
		if n == 0 {
			break
		}
		end -= n
	}
	return raw[:end], raw[end:]
}

// spaceBefore is how many bytes the white space at the end of raw takes, 0 where
// there is none: a letter is a line's end only after a backslash that is not
// itself escaped.
func spaceBefore(raw []byte) int {
	switch raw[len(raw)-1] {
	case ' ':
		return 1
	case 'n', 'r', 't':
		slashes := 0
		for slashes < len(raw)-1 && raw[len(raw)-2-slashes] == '\\' {
			slashes++
		}
		return 2 * (slashes % 2)
	}
	return 0
}

// spaceLen is how many bytes the first white space of what SplitSpace cut takes.
func spaceLen(space []byte) int {
	if space[0] == ' ' {
		return 1
	}
	return 2
}
