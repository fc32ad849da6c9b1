package wire

import (
	"bytes"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
)

// maxFields limits the fields of a head: each field uses more memory than its bytes.
const maxFields = 1000

// malformed returns an ErrMalformed with details.
func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// readHead reads the head of a response and interprets it.
func (c *conn) readHead(resp *http.Response) error {
	if err := c.readFinalHead(resp); err != nil {
		return fmt.Errorf("reading the response header: %w", err)
	}
	return nil
}

// readFinalHead reads heads until one is not interim.
func (c *conn) readFinalHead(resp *http.Response) error {
	for remaining := c.t.opts.MaxHeadBytes; ; {
		head, fields, err := c.readOneHead(remaining)
		if err != nil {
			return err
		}
		remaining -= len(head)
		*resp = http.Response{Request: resp.Request} // drop the interim response
		if err := parseHead(head, fields, resp); err != nil {
			return err
		}
		if err := interpretHead(resp); err != nil {
			return err
		}
		switch {
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return malformed("status 101, but no protocol upgrade was requested")
		case resp.StatusCode >= http.StatusOK:
			return nil
		}
	}
}

// readOneHead reads one head of at most limit bytes from the connection. It returns one string; the
// header's values are parts of this string.
func (c *conn) readOneHead(limit int) (head string, fields int, err error) {
	var s headScanner
	for {
		unread := c.unread()
		end, err := s.findEnd(unread)
		switch {
		case err != nil:
			return "", 0, err
		case end > limit || (end == 0 && len(unread) >= limit):
			return "", 0, malformed("must have at most %d bytes", c.t.opts.MaxHeadBytes)
		case end > 0:
			head = string(unread[:end])
			c.skip(end)
			return head, s.lines - 1, nil
		}
		if err := c.fillMore(); err != nil {
			return "", 0, err
		}
	}
}

// headScanner finds the end of a head that arrives in pieces.
type headScanner struct {
	line     int // start of the current line
	searched int // there is no LF between line and this position
	lines    int // lines before the current one
}

// findEnd returns the length of the head at the start of b, 0 when it is not complete. b must begin with
// the bytes of the previous call.
func (s *headScanner) findEnd(b []byte) (int, error) {
	for {
		i := bytes.IndexByte(b[s.searched:], '\n')
		if i < 0 {
			s.searched = len(b)
			return 0, nil
		}
		lf := s.searched + i
		s.searched = lf + 1
		switch {
		case lf == s.line || b[lf-1] != '\r':
			return 0, malformed("a line ends in a bare LF")
		case lf == s.line+1:
			return s.searched, nil
		}
		s.line = s.searched
		if s.lines++; s.lines > maxFields+1 {
			return 0, malformed("must have at most %d fields", maxFields)
		}
	}
}

// parseHead parses a complete head, including its blank line.
func parseHead(head string, fields int, resp *http.Response) error {
	line, rest, _ := strings.Cut(head, "\r\n")
	if err := parseStatus(line, resp); err != nil {
		return err
	}
	header, err := parseFields(rest, fields)
	resp.Header = header
	return err
}

// parseStatus parses a status line.
func parseStatus(line string, resp *http.Response) error {
	const version, code = len("HTTP/1."), len("HTTP/1.1 ")
	valid := len(line) >= code+3 && line[:version] == "HTTP/1." && isDigit(line[version]) && line[code-1] == ' ' &&
		line[code] >= '1' && isDigit(line[code]) && isDigit(line[code+1]) && isDigit(line[code+2]) &&
		(len(line) == code+3 || line[code+3] == ' ') && isText(line)
	if !valid {
		return malformed("status line: must be HTTP/1.x STATUS [REASON], got %.80q", line)
	}
	resp.Proto, resp.Status = line[:code-1], line[code:]
	resp.ProtoMajor, resp.ProtoMinor = 1, int(line[version]-'0')
	resp.StatusCode = int(line[code]-'0')*100 + int(line[code+1]-'0')*10 + int(line[code+2]-'0')
	return nil
}

// parseFields parses fields up to a blank line. n is their number, 0 if it is unknown.
func parseFields(text string, n int) (http.Header, error) {
	header := make(http.Header, n)
	single := make([]string, n) // one allocation for all values
	for {
		line, rest, _ := strings.Cut(text, "\r\n")
		if line == "" {
			return header, nil
		}
		text = rest
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) { // so also a folded line, which begins with a space
			return nil, malformed("field: name must be an HTTP token, got %.80q", name)
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if !isText(value) {
			return nil, malformed("field %s: value contains a control character", name)
		}
		value = textproto.TrimString(value)
		if values := header[name]; values != nil || len(single) == 0 {
			header[name] = append(values, value)
			continue
		}
		single[0] = value
		header[name], single = single[:1:1], single[1:]
	}
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// tokenBytes are the bytes allowed in names and methods (RFC 9110, section 5.6.2).
var tokenBytes = func() (table [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		table[b] = true
	}
	return table
}()

// isToken reports whether s may be a name or a method.
func isToken(s string) bool {
	for i := range len(s) {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

// isText reports whether s may be a field's value or a reason: it has no control characters except
// tabs.
func isText(s string) bool {
	for i := range len(s) {
		if b := s[i]; b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}

// isWord reports whether s is text without spaces.
func isWord(s string) bool {
	for i := range len(s) {
		if b := s[i]; b <= ' ' || b == 0x7f {
			return false
		}
	}
	return s != ""
}

// hostBytes are the bytes allowed in a host and port (RFC 3986, section 3.2.2).
var hostBytes = func() (table [256]bool) {
	for b := range tokenBytes {
		table[b] = tokenBytes[b] && !strings.ContainsRune("#^`|", rune(b))
	}
	for _, b := range []byte("[]:();,=") {
		table[b] = true
	}
	return table
}()

// isHost reports whether s may be the value of a Host field: a host and port according to RFC 3986.
func isHost(s string) bool {
	for i := range len(s) {
		if !hostBytes[s[i]] {
			return false
		}
	}
	return s != ""
}
