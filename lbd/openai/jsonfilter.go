package openai

import "bytes"

// jsonFilter is the position in a JSON document that arrives in pieces. A model writes the input of
// a tool call with its own spaces and escapes, and the client sends it back with others: without
// them, both have the same key. The zero value is ready for a document.
type jsonFilter struct {
	inString bool
	escape   [maxEscape]byte // an incomplete escape
	length   int             // of escape
}

// Lengths of escapes: \u and four digits; two of these for a character outside the BMP.
const (
	unicodeEscape = len(`\u0000`)
	maxEscape     = 2 * unicodeEscape
)

// writeJSON writes the next piece of a JSON document without spaces outside strings and without
// escapes of characters that do not need them.
func (r *Rendering) writeJSON(piece []byte) {
	j := &r.json
	for len(piece) > 0 {
		var n int
		switch {
		case j.length > 0:
			n = r.continueEscape(piece[0])
		case j.inString:
			n = plainBytes(piece)
			_, _ = r.hash.Write(piece[:n])
			if n < len(piece) {
				r.endRun(piece[n])
				n++
			}
		default:
			n = r.writeOutside(piece)
		}
		piece = piece[n:]
	}
}

// writeOutside writes the beginning of a piece outside strings, including the quote of the next
// string, without spaces. It returns the number of bytes read.
func (r *Rendering) writeOutside(piece []byte) (n int) {
	for n < len(piece) && bytes.IndexByte([]byte(" \t\r\n"), piece[n]) < 0 && !r.json.inString {
		r.json.inString = piece[n] == '"'
		n++
	}
	_, _ = r.hash.Write(piece[:n])
	if n < len(piece) && !r.json.inString {
		n++ // the space
	}
	return n
}

// endRun processes the byte of a string that is not plain text.
func (r *Rendering) endRun(c byte) {
	j := &r.json
	if c == '\\' {
		j.escape[0], j.length = c, 1
		return
	}
	j.inString = c != '"'
	_, _ = r.hash.Write([]byte{c})
}

// continueEscape processes the next byte after the beginning of an escape. It returns 0 if the byte
// belongs to the text after it, else 1.
func (r *Rendering) continueEscape(c byte) (n int) {
	j := &r.json
	switch {
	case j.length == unicodeEscape && c != '\\': // half a pair without the other half
		r.flushEscape()
		return 0
	case j.length == unicodeEscape+1 && c != 'u': // half a pair and another escape
		j.length = unicodeEscape
		r.flushEscape()
		j.escape[0], j.length = '\\', 1
		return 0
	}
	j.escape[j.length] = c
	j.length++
	if j.length == maxEscape || j.length == 2 && c != 'u' || j.length == unicodeEscape && !highSurrogate(j.escape[2:4]) {
		r.flushEscape()
	}
	return 1
}

// highSurrogate reports whether an escape with these first digits is the first half of a pair.
func highSurrogate(digits []byte) bool {
	return digits[0]|0x20 == 'd' && (digits[1] == '8' || digits[1] == '9' || digits[1]|0x20 == 'a' || digits[1]|0x20 == 'b')
}

// flushEscape writes the character of a complete escape, with a backslash before a quote or a
// backslash.
func (r *Rendering) flushEscape() {
	j := &r.json
	var quoted [maxEscape + 2]byte
	plain, _ := text(append(append(append(quoted[:0], '"'), j.escape[:j.length]...), '"'), nil)
	j.length = 0
	if len(plain) == 1 && (plain[0] == '"' || plain[0] == '\\') {
		_, _ = r.hash.Write([]byte{'\\'})
	}
	_, _ = r.hash.Write(plain)
}
