package openai

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/buger/jsonparser"
)

// maxDepth is the maximum nesting of JSON: tool schemas reach about twenty levels.
const maxDepth = 256

// malformedError is the position at which a body is not valid JSON.
type malformedError struct {
	data     []byte
	at       int
	expected string
}

// Error contains the position as byte, line and column, and the expected and the actual character.
func (m *malformedError) Error() string {
	before := m.data[:m.at]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := m.at - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("byte %d (line %d, column %d): expected %s, got %s", m.at, line, column, m.expected, m.found())
}

func (m *malformedError) found() string {
	if m.at >= len(m.data) {
		return "the end of the body"
	}
	if c, size := utf8.DecodeRune(m.data[m.at:]); c != utf8.RuneError || size > 1 {
		return strconv.QuoteRune(c)
	}
	return fmt.Sprintf("byte 0x%02x", m.data[m.at])
}

// Span is the position of a value in the body, including quotes and brackets; the zero Span is a
// missing value.
type Span struct{ From, To int }

func (s Span) of(data []byte) []byte { return data[s.From:s.To] }

// kindOf returns the first byte of a value: { [ " t f n, or the first byte of a number; 0 if empty.
func kindOf(raw []byte) byte {
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// cursor parses JSON by its grammar (RFC 8259) without copying.
type cursor struct {
	data  []byte
	at    int
	depth int
}

func (c *cursor) fail(want string) error {
	return &malformedError{c.data, min(c.at, len(c.data)), want}
}

// peek returns the next byte that is not white space, 0 at the end.
func (c *cursor) peek() byte {
	for ; c.at < len(c.data); c.at++ {
		switch b := c.data[c.at]; b {
		case ' ', '\n', '\r', '\t':
		default:
			return b
		}
	}
	return 0
}

// open enters an object or array.
func (c *cursor) open(bracket byte, want string) error {
	if c.peek() != bracket {
		return c.fail(want)
	}
	if c.depth++; c.depth > maxDepth {
		return c.fail("at most " + strconv.Itoa(maxDepth) + " levels of brackets")
	}
	c.at++
	return nil
}

// more reports whether another member follows in an open bracket, and leaves the bracket if there
// is none. first is true for the first call.
func (c *cursor) more(closing byte, first bool) (bool, error) {
	b := c.peek()
	switch {
	case b == closing:
		c.at++
		c.depth--
		return false, nil
	case first:
		return true, nil
	case b == ',':
		c.at++
		return true, nil
	}
	return false, c.fail("',' or '" + string(closing) + "'")
}

// key reads a member's key and its colon; the span is the quoted key.
func (c *cursor) key() (Span, error) {
	if c.peek() != '"' {
		return Span{}, c.fail("a key in quotes")
	}
	key := Span{From: c.at}
	if err := c.str(); err != nil {
		return Span{}, err
	}
	key.To = c.at
	if c.peek() != ':' {
		return Span{}, c.fail("':' after a key")
	}
	c.at++
	return key, nil
}

// value reads one value of any kind.
func (c *cursor) value() (Span, error) {
	b := c.peek()
	v := Span{From: c.at}
	var err error
	switch {
	case b == '"':
		err = c.str()
	case b == '{':
		err = c.object()
	case b == '[':
		err = c.array()
	case b == '-' || digit(b):
		err = c.number()
	case b == 't':
		err = c.word("true")
	case b == 'f':
		err = c.word("false")
	case b == 'n':
		err = c.word("null")
	default:
		err = c.fail("a value")
	}
	v.To = c.at
	return v, err
}

func (c *cursor) object() error {
	if err := c.open('{', "'{'"); err != nil {
		return err
	}
	for first := true; ; first = false {
		more, err := c.more('}', first)
		if err != nil || !more {
			return err
		}
		if _, err = c.key(); err != nil {
			return err
		}
		if _, err = c.value(); err != nil {
			return err
		}
	}
}

func (c *cursor) array() error {
	if err := c.open('[', "'['"); err != nil {
		return err
	}
	for first := true; ; first = false {
		more, err := c.more(']', first)
		if err != nil || !more {
			return err
		}
		if _, err = c.value(); err != nil {
			return err
		}
	}
}

func (c *cursor) word(w string) error {
	for i := range len(w) {
		if c.at >= len(c.data) || c.data[c.at] != w[i] {
			return c.fail(w)
		}
		c.at++
	}
	return nil
}

func digit(b byte) bool { return '0' <= b && b <= '9' }

func (c *cursor) digits() error {
	start := c.at
	for c.at < len(c.data) && digit(c.data[c.at]) {
		c.at++
	}
	if c.at == start {
		return c.fail("a digit")
	}
	return nil
}

func (c *cursor) next(b byte) bool {
	if c.at < len(c.data) && c.data[c.at] == b {
		c.at++
		return true
	}
	return false
}

func (c *cursor) number() error {
	c.next('-')
	if !c.next('0') {
		if err := c.digits(); err != nil {
			return err
		}
	}
	if c.next('.') {
		if err := c.digits(); err != nil {
			return err
		}
	}
	if c.next('e') || c.next('E') {
		if !c.next('+') {
			c.next('-')
		}
		return c.digits()
	}
	return nil
}

// str reads a string whose opening quote is next.
func (c *cursor) str() error {
	c.at++
	for {
		c.at += plainBytes(c.data[c.at:])
		if c.at >= len(c.data) {
			return c.fail("'\"' at the end of a string")
		}
		switch c.data[c.at] {
		case '"':
			c.at++
			return nil
		case '\\':
			c.at++
			if err := c.escape(); err != nil {
				return err
			}
		default:
			return c.fail("no control character in a string")
		}
	}
}

func (c *cursor) escape() error {
	if c.at >= len(c.data) {
		return c.fail("an escape")
	}
	switch c.data[c.at] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		c.at++
		return nil
	case 'u':
		c.at++
		for range 4 {
			if c.at >= len(c.data) || !hexDigit(c.data[c.at]) {
				return c.fail("four hexadecimal digits")
			}
			c.at++
		}
		return nil
	}
	return c.fail(`one of "\/bfnrtu after a backslash`)
}

func hexDigit(b byte) bool {
	return digit(b) || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
}

// plainBytes returns the number of bytes before the first quote, backslash or control character. It
// processes eight bytes at once: in a word, a byte's top bit is set in the mask if the byte is zero
// after subtracting the quote or the backslash, or is below 0x20.
func plainBytes(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		mask := (quote-ones)&^quote | (slash-ones)&^slash | (w-ones*0x20)&^w
		if mask &= tops; mask != 0 {
			return n + bits.TrailingZeros64(mask)/8
		}
	}
	for ; n < len(b); n++ {
		if b[n] == '"' || b[n] == '\\' || b[n] < 0x20 {
			break
		}
	}
	return n
}

// text decodes a quoted string. It uses scratch if the string contains escapes; a string with
// invalid escapes (half a surrogate pair) is returned undecoded.
func text(raw, scratch []byte) (plain, memory []byte) {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, scratch
	}
	if cap(scratch) < len(inner) {
		scratch = make([]byte, len(inner))
	}
	plain, err := jsonparser.Unescape(inner, scratch[:cap(scratch)])
	if err != nil {
		return inner, scratch
	}
	return plain, scratch
}
