package probe

import "bytes"

// scanner reads a JSON document in place, without allocating. It accepts some invalid documents.
type scanner struct {
	b  []byte
	at int
}

// next skips white space and returns the next byte without reading it; 0 at the end.
func (s *scanner) next() byte {
	for s.at < len(s.b) {
		switch c := s.b[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// eachKey calls visit for each key of an object, at the key's value. It skips a value that visit does
// not read, and returns false if there is no complete object.
func (s *scanner) eachKey(visit func(key []byte)) bool {
	if s.next() != '{' {
		return false
	}
	s.at++
	for {
		switch s.next() {
		case '}':
			s.at++
			return true
		case ',':
			s.at++
		case '"':
			key, ok := s.text()
			if !ok || s.next() != ':' {
				return false
			}
			s.at++
			if !s.visitValue(func() { visit(key) }) {
				return false
			}
		default:
			return false
		}
	}
}

// eachElement is eachKey for the elements of an array.
func (s *scanner) eachElement(visit func()) bool {
	if s.next() != '[' {
		return false
	}
	s.at++
	for {
		switch s.next() {
		case ']':
			s.at++
			return true
		case ',':
			s.at++
		case 0:
			return false
		default:
			if !s.visitValue(visit) {
				return false
			}
		}
	}
}

// visitValue calls visit, and skips the value if visit read nothing.
func (s *scanner) visitValue(visit func()) bool {
	s.next()
	from := s.at
	if visit(); s.at == from {
		return s.skip()
	}
	return true
}

// text reads a string without decoding its escapes.
func (s *scanner) text() ([]byte, bool) {
	from := s.at + 1
	end := quoteEnd(s.b, from)
	if end < 0 {
		return nil, false
	}
	s.at = end + 1
	return s.b[from:end], true
}

// number reads a finite number. It reads nothing if the value is something else.
func (s *scanner) number() (v float64, ok bool) {
	s.next()
	rest := s.b[s.at:]
	n := bytes.IndexAny(rest, ",}] \t\r\n")
	if n < 0 {
		n = len(rest)
	}
	if v, ok = parseValue(rest[:n]); ok {
		s.at += n
	}
	return v, ok
}

// skip skips a value.
func (s *scanner) skip() bool {
	for depth := 0; ; {
		switch s.next() {
		case 0:
			return false
		case '"':
			if _, ok := s.text(); !ok {
				return false
			}
		case '{', '[':
			s.at++
			depth++
			continue
		case '}', ']':
			s.at++
			if depth--; depth < 0 {
				return false
			}
		case ',', ':':
			if s.at++; depth == 0 {
				return false
			}
			continue
		default:
			if n := bytes.IndexAny(s.b[s.at:], ",:}] \t\r\n\"{["); n > 0 {
				s.at += n
			} else {
				s.at = len(s.b)
			}
		}
		if depth == 0 {
			return true
		}
	}
}
