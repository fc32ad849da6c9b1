package proxy

import (
	"bytes"
	"strings"
)

// How much of a prompt an engine had in its cache tells what others asked before. A
// client with an API key is not told, unless the operator says so: the figures of its
// answers read 0. They are replaced in place, so that nothing else of an answer
// changes, not even its length.

// tellsCache are the beginnings of the names under which engines tell it: OpenAI's, vLLM's
// and SGLang's own, DeepSeek's, Anthropic's.
var tellsCache = []string{
	"cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_tokens",
}

// maxCacheName is longer than each of them.
const maxCacheName = 32

// mentionsCache is a quick look whether there can be anything to hide.
func mentionsCache(b []byte) bool { return bytes.Contains(b, []byte("cache")) }

// hidesCache says whether the client must not be told what was cached.
func (r *Runtime) hidesCache(o *origin) bool { return o.account != nil && !r.exposeCache.Load() }

// SetExposeCache tells clients with API keys how much of their prompts was cached, or
// not; it holds for answers that begin from now on.
func (r *Runtime) SetExposeCache(on bool) { r.exposeCache.Store(on) }

// cacheMask reads JSON, in pieces of any size, and makes the numbers 0 that tell what
// was cached. Its zero value stands before a document.
type cacheMask struct {
	at     place
	name   [maxCacheName]byte // of the string at hand
	length int
	depth  int  // brackets inside the value that is hidden
	number bool // its first digit has passed
}

// place is where in a document a cacheMask is.
type place int

const (
	outside       place = iota // of strings and of what is hidden
	inString                   //
	inEscape                   // behind a backslash in a string
	behindName                 // a string that tells of the cache has ended
	inValue                    // what is hidden
	inValueString              // a string in it
	inValueEscape              //
)

// hide goes on with the next piece, which it changes.
func (m *cacheMask) hide(piece []byte) {
	for i, c := range piece {
		switch m.at {
		case outside:
			if c == '"' {
				m.at, m.length = inString, 0
			}
		case inString:
			m.str(c)
		case inEscape:
			m.at = inString
		case behindName:
			m.behind(c)
		case inValue:
			piece[i] = m.value(c)
		case inValueString:
			switch c {
			case '\\':
				m.at = inValueEscape
			case '"':
				m.at = inValue
			}
		case inValueEscape:
			m.at = inValueString
		}
	}
}

// str takes a byte of a string.
func (m *cacheMask) str(c byte) {
	switch {
	case c == '\\':
		m.at, m.length = inEscape, maxCacheName // no name that is looked for has one
	case c == '\n':
		m.at = outside // JSON has none in a string: this was no JSON, the next line may be
	case c == '"':
		if m.at = outside; m.tells() {
			m.at = behindName
		}
	case m.length < maxCacheName:
		m.name[m.length] = c
		m.length++
	}
}

func (m *cacheMask) tells() bool {
	if m.length == maxCacheName {
		return false
	}
	name := m.name[:m.length]
	if !mentionsCache(name) {
		return false
	}
	for _, t := range tellsCache {
		if strings.HasPrefix(string(name), t) {
			return true
		}
	}
	return false
}

// behind takes a byte after a string that tells of the cache: it is a name if a colon
// follows.
func (m *cacheMask) behind(c byte) {
	switch c {
	case ' ', '\t', '\r', '\n':
	case ':':
		m.at, m.depth, m.number = inValue, 0, false
	default:
		m.at = outside
	}
}

// value takes a byte of a value that is hidden and gives what stands there instead: of
// a number the first byte is 0 and the others are spaces.
func (m *cacheMask) value(c byte) byte {
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
	m.number = m.number && (c == ' ') // never within one: it has no spaces
	switch c {
	case '"':
		m.at = inValueString
	case '[', '{':
		m.depth++
	case ']', '}':
		m.depth--
	}
	if m.depth < 0 || m.depth == 0 && (c == ',' || c == ']' || c == '}') {
		m.at = outside
	}
	return c
}

// tellsCache says whether an event that was just looked at has something to hide. Those
// that are alike but for their text have not.
func (x *exchange) tellsCache(event []byte) bool {
	return x.hidesCache && !x.masking && !x.answer.alike && mentionsCache(event)
}

// maskRest hides from now on what goes by without being looked into: of an answer or
// an event that is too large to be held.
func (x *exchange) maskRest() { x.masking = x.hidesCache }

// hideCache hides what a whole document or event tells of the cache.
func hideCache(b []byte) {
	if mentionsCache(b) {
		(&cacheMask{}).hide(b)
	}
}
