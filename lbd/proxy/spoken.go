package proxy

import "bytes"

// spoken is what a client has of a streamed answer that can be continued
// elsewhere when its target fails. A nil one belongs to an answer that cannot.
type spoken struct {
	// text is the pieces of the answer as JSON writes them, without their quotes:
	// in a row they are one string again. Nil before the first and after the loss.
	text *pooled
	held held // of text
	room int  // bytes that may still enter text
	head head
	role bool // the client knows whose turn it is, by a word or by the text
	// ended: the reason why the answer came to its end has passed; closed: so has
	// the end of the stream.
	ended, closed bool
	// lost: the answer holds what no prompt can begin with (a tool call, a thought,
	// a text that is too long to be kept), so that it cannot be continued.
	lost bool
}

// head is what every chunk of one answer repeats, as JSON writes it; nil where it
// was not said.
type head struct{ id, created, model []byte }

// meet keeps what the first chunk says of the answer.
func (s *spoken) meet(key, value []byte) {
	if s == nil {
		return
	}
	field := s.head.field(key)
	if field != nil && *field == nil {
		*field = bytes.Clone(value)
	}
}

// field is where a chunk's value is kept, nil for one that is not.
func (h *head) field(key []byte) *[]byte {
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

// say adds a quoted piece of the answer.
func (s *spoken) say(quoted []byte) {
	if s == nil || s.lost {
		return
	}
	piece := quoted[1 : len(quoted)-1]
	if len(piece) > s.room {
		s.lose()
		return
	}
	s.room -= len(piece)
	s.role = true
	if s.text == nil || cap(s.text.b)-len(s.text.b) < len(piece) {
		if !s.grow(len(piece)) {
			s.lose()
			return
		}
	}
	s.text.b = append(s.text.b, piece...)
}

// grow makes room for n bytes more of the text, twice as much as there was at least, as it
// comes in small pieces; false where there is no memory for that.
func (s *spoken) grow(n int) bool {
	want := max(n, leastBuffer)
	if s.text != nil {
		want = max(len(s.text.b)+n, 2*cap(s.text.b))
	}
	_, size := sizeClass(want)
	if s.held.set(int64(size)) != nil {
		return false
	}
	if s.text == nil {
		s.text = takeBuffer(size)
	} else {
		s.text.growTo(size)
	}
	return true
}

// soFar is the text as JSON writes it, without quotes.
func (s *spoken) soFar() []byte {
	if s.text == nil {
		return nil
	}
	return s.text.b
}

// turn notes that the client was told whose turn it is.
func (s *spoken) turn() {
	if s != nil {
		s.role = true
	}
}

// end notes that the answer has come to its end.
func (s *spoken) end() {
	if s != nil {
		s.ended = true
	}
}

// close notes that the stream has.
func (s *spoken) close() {
	if s != nil {
		s.ended, s.closed = true, true
	}
}

// lose gives up hope and memory.
func (s *spoken) lose() {
	if s != nil {
		s.lost = true
		s.release()
	}
}

// release lets go of the text.
func (s *spoken) release() {
	if s.text == nil {
		return
	}
	s.text.release()
	s.text = nil
	s.held.release()
}

// splitSpace parts a text, as JSON writes it, from the white space at its end.
func splitSpace(raw []byte) (said, space []byte) {
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

// spaceLen is how many bytes the first white space of what splitSpace cut takes.
func spaceLen(space []byte) int {
	if space[0] == ' ' {
		return 1
	}
	return 2
}
