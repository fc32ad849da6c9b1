package openai

import (
	"bytes"

	"skyserve/lbd/buffer"
)

// Transcript is the part of a streamed answer that the client has, so that another target can
// continue it if its target fails. It is nil if the answer cannot be continued.
type Transcript struct {
	// text contains the pieces of the answer, JSON-encoded and concatenated, without quotes. It is nil
	// before the first piece and after lost is set.
	text *buffer.Buffer
	// Memory accounts for the text; nil = no accounting. RemainingBytes is the remaining number of bytes
	// that the text may have.
	Memory         TextMemory
	RemainingBytes int
	head           chunkHead
	roleKnown      bool // the client has the role of the message, explicitly or implied by its text
	// ended: the finish reason has been sent; closed: so has the end of the stream.
	ended, closed bool
	// lost: the answer cannot be continued, because it contains a part that cannot be in a prompt (a
	// tool call, reasoning), or because its text is too long to keep.
	lost bool
}

// TextMemory limits the memory of a transcript.
type TextMemory interface {
	// Set changes the number of bytes in use. On an error the number is unchanged.
	Set(bytes int64) error
	// Release releases all bytes.
	Release()
}

// Lost reports whether the answer cannot be continued.
func (s *Transcript) Lost() bool { return s.lost }

// Ended reports whether the answer is complete.
func (s *Transcript) Ended() bool { return s.ended }

// Ending returns the part of a stream that the client has not received, if its answer is complete.
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

// chunkHead is the part that every chunk of one answer repeats, JSON-encoded; nil if not present.
type chunkHead struct{ id, created, model []byte }

// recordHead keeps the head of the first chunk.
func (s *Transcript) recordHead(key, value []byte) {
	if s == nil {
		return
	}
	field := s.head.field(key)
	if field != nil && *field == nil {
		*field = bytes.Clone(value)
	}
}

// field returns the field for a value of a chunk; nil for an irrelevant key.
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
	if len(piece) > s.RemainingBytes {
		s.Discard()
		return
	}
	s.RemainingBytes -= len(piece)
	s.roleKnown = true
	if s.text == nil || cap(s.text.B)-len(s.text.B) < len(piece) {
		if !s.reserve(len(piece)) {
			s.Discard()
			return
		}
	}
	s.text.B = append(s.text.B, piece...)
}

// reserve allocates memory for n more bytes of text, at least doubling it, because the pieces are
// small; it returns false if the memory limit is reached.
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

// Text returns the text JSON-encoded, without quotes.
func (s *Transcript) Text() []byte {
	if s.text == nil {
		return nil
	}
	return s.text.B
}

// recordRole records that the client has received the message's role.
func (s *Transcript) recordRole() {
	if s != nil {
		s.roleKnown = true
	}
}

// markEnded records that the answer is complete.
func (s *Transcript) markEnded() {
	if s != nil {
		s.ended = true
	}
}

// markClosed records that the stream is complete.
func (s *Transcript) markClosed() {
	if s != nil {
		s.ended, s.closed = true, true
	}
}

// Discard marks the answer as not continuable and releases its text.
func (s *Transcript) Discard() {
	if s != nil {
		s.lost = true
		s.Release()
	}
}

// Release releases the text.
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

// SplitSpace splits the trailing white space off a JSON-encoded text.
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

// spaceBefore returns the length of the last white-space character of raw, 0 if it ends in none.
// The letters n, r and t are white space only after a backslash that is not itself escaped.
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

// spaceLen returns the length of the first white-space character of the space that SplitSpace
// returned.
func spaceLen(space []byte) int {
	if space[0] == ' ' {
		return 1
	}
	return 2
}
