package openai

import (
	"bytes"
	"strings"
)

// cacheNames are the prefixes of the names under which engines report cached tokens: OpenAI's,
// vLLM's and SGLang's own, DeepSeek's, Anthropic's.
var cacheNames = []string{
	"cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cache_read_input_tokens", "cache_creation", "cache_write_tokens",
}

// maxCacheName exceeds the length of each of them.
const maxCacheName = 32

// MentionsCache is a quick check whether there may be anything to hide.
func MentionsCache(b []byte) bool { return bytes.Contains(b, []byte("cache")) }

// CacheMask processes JSON in pieces of any size and replaces the numbers of cached tokens by 0.
// The zero value is ready for a document.
type CacheMask struct {
	// Uncached: the numbers of uncached tokens are replaced too. In the Messages API, input_tokens
	// is one, and reveals how much of a known prompt was cached.
	Uncached bool

	state  maskState
	name   [maxCacheName]byte // of the current string
	length int
	depth  int  // open brackets inside the hidden value
	number bool // its first digit was processed
}

// maskState is the position of a CacheMask in a document.
type maskState int

const (
	outside       maskState = iota // outside strings and hidden values
	inString                       //
	inEscape                       // after a backslash in a string
	afterName                      // after a string that names the cache
	inValue                        // a hidden value
	inValueString                  // a string in it
	inValueEscape                  //
)

// Hide processes the next piece and changes it in place.
func (m *CacheMask) Hide(piece []byte) {
	for i, c := range piece {
		switch m.state {
		case outside:
			if c == '"' {
				m.state, m.length = inString, 0
			}
		case inString:
			m.stringByte(c)
		case inEscape:
			m.state = inString
		case afterName:
			m.afterStringByte(c)
		case inValue:
			piece[i] = m.valueByte(c)
		case inValueString:
			switch c {
			case '\\':
				m.state = inValueEscape
			case '"':
				m.state = inValue
			}
		case inValueEscape:
			m.state = inValueString
		}
	}
}

// stringByte processes a byte of a string.
func (m *CacheMask) stringByte(c byte) {
	switch {
	case c == '\\':
		m.state, m.length = inEscape, maxCacheName // no cache name contains an escape
	case c == '\n':
		m.state = outside // invalid in JSON strings: the line is not JSON, the next one may be
	case c == '"':
		if m.state = outside; m.namesCache() {
			m.state = afterName
		}
	case m.length < maxCacheName:
		m.name[m.length] = c
		m.length++
	}
}

func (m *CacheMask) namesCache() bool {
	if m.length == maxCacheName {
		return false
	}
	name := m.name[:m.length]
	if m.Uncached && string(name) == "input_tokens" {
		return true
	}
	if !MentionsCache(name) {
		return false
	}
	for _, t := range cacheNames {
		if strings.HasPrefix(string(name), t) {
			return true
		}
	}
	return false
}

// afterStringByte processes a byte after a string that names the cache: the string is a key if a
// colon follows.
func (m *CacheMask) afterStringByte(c byte) {
	switch c {
	case ' ', '\t', '\r', '\n':
	case ':':
		m.state, m.depth, m.number = inValue, 0, false
	default:
		m.state = outside
	}
}

// valueByte processes a byte of a hidden value and returns its replacement: 0 for the first byte of
// a number, spaces for the others.
func (m *CacheMask) valueByte(c byte) byte {
	switch {
	case '0' <= c && c <= '9', c == '-':
		if m.number {
			return ' '
		}
		m.number = true
		return '0'
	case m.number && (c == '.' || c == 'e' || c == 'E' || c == '+'):
		return ' '
	}
	m.number = m.number && (c == ' ') // a number ends at a space
	switch c {
	case '"':
		m.state = inValueString
	case '[', '{':
		m.depth++
	case ']', '}':
		m.depth--
	}
	if m.depth < 0 || m.depth == 0 && (c == ',' || c == ']' || c == '}') {
		m.state = outside
	}
	return c
}

// HideCache hides the cached tokens in a complete document or event.
func HideCache(b []byte) {
	if MentionsCache(b) {
		(&CacheMask{}).Hide(b)
	}
}
