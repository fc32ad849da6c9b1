package wire

import (
	"bytes"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
)

// maxFields bounds the fields of a head: each costs more memory than the wire
// shows.
const maxFields = 1000

// malformed is an ErrMalformed with what is wrong.
func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// readHead reads an answer's head and what it says of the message.
func (c *conn) readHead(resp *http.Response) error {
	if err := c.finalHead(resp); err != nil {
		return fmt.Errorf("reading the answer's head: %w", err)
	}
	return nil
}

// finalHead reads heads until one is not interim.
func (c *conn) finalHead(resp *http.Response) error {
	for left := c.t.opts.MaxHeadBytes; ; {
		head, fields, err := c.cutHead(left)
		if err != nil {
			return err
		}
		left -= len(head)
		*resp = http.Response{Request: resp.Request} // nothing stays of an interim answer
		if err := parseHead(head, fields, resp); err != nil {
			return err
		}
		if err := settle(resp); err != nil {
			return err
		}
		switch {
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return malformed("status 101, but no other protocol was asked for")
		case resp.StatusCode >= http.StatusOK:
			return nil
		}
	}
}

// cutHead takes one head of at most most bytes off the connection, as a string
// that the header's values are then parts of.
func (c *conn) cutHead(most int) (head string, fields int, err error) {
	var s scan
	for {
		unread := c.unread()
		end, err := s.end(unread)
		switch {
		case err != nil:
			return "", 0, err
		case end > most || (end == 0 && len(unread) >= most):
			return "", 0, malformed("it is longer than %d bytes", c.t.opts.MaxHeadBytes)
		case end > 0:
			head = string(unread[:end])
			c.skip(end)
			return head, s.lines - 1, nil
		}
		if err := c.more(); err != nil {
			return "", 0, err
		}
	}
}

// scan finds the end of a head that arrives in pieces.
type scan struct {
	line  int // where the line at hand begins
	seen  int // up to where there is no further LF
	lines int // before the line at hand
}

// end is the length of the head at the front of b, 0 when it is not complete.
// b must begin with what it was at the last call.
func (s *scan) end(b []byte) (int, error) {
	for {
		i := bytes.IndexByte(b[s.seen:], '\n')
		if i < 0 {
			s.seen = len(b)
			return 0, nil
		}
		lf := s.seen + i
		s.seen = lf + 1
		switch {
		case lf == s.line || b[lf-1] != '\r':
			return 0, malformed("a line ends in a bare LF")
		case lf == s.line+1:
			return s.seen, nil
		}
		s.line = s.seen
		if s.lines++; s.lines > maxFields+1 {
			return 0, malformed("it has more than %d fields", maxFields)
		}
	}
}

// parseHead reads a whole head, its blank line included.
func parseHead(head string, fields int, resp *http.Response) error {
	line, rest, _ := strings.Cut(head, "\r\n")
	if err := parseStatus(line, resp); err != nil {
		return err
	}
	header, err := parseFields(rest, fields)
	resp.Header = header
	return err
}

// parseStatus reads a status line.
func parseStatus(line string, resp *http.Response) error {
	const version, code = len("HTTP/1."), len("HTTP/1.1 ")
	valid := len(line) >= code+3 && line[:version] == "HTTP/1." && isDigit(line[version]) && line[code-1] == ' ' &&
		line[code] >= '1' && isDigit(line[code]) && isDigit(line[code+1]) && isDigit(line[code+2]) &&
		(len(line) == code+3 || line[code+3] == ' ') && isText(line)
	if !valid {
		return malformed("status line: got %.80q", line)
	}
	resp.Proto, resp.Status = line[:code-1], line[code:]
	resp.ProtoMajor, resp.ProtoMinor = 1, int(line[version]-'0')
	resp.StatusCode = int(line[code]-'0')*100 + int(line[code+1]-'0')*10 + int(line[code+2]-'0')
	return nil
}

// parseFields reads fields up to a blank line; n is how many there are at most.
func parseFields(text string, n int) (http.Header, error) {
	header := make(http.Header, n)
	single := make([]string, n) // one allocation for the values of all
	for {
		line, rest, _ := strings.Cut(text, "\r\n")
		if line == "" {
			return header, nil
		}
		text = rest
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) { // a folded line begins with a space
			return nil, malformed("field: got name %.80q", name)
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if !isText(value) {
			return nil, malformed("field %s: its value holds a control character", name)
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

// tokenBytes are the bytes of names and methods (RFC 9110, section 5.6.2).
var tokenBytes = func() (table [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		table[b] = true
	}
	return table
}()

// isToken says whether s may be a name or a method.
func isToken(s string) bool {
	for i := range len(s) {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

// isText says whether s may be a field's value or a reason: no control
// characters but tabs.
func isText(s string) bool {
	for i := range len(s) {
		if b := s[i]; b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}

// isWord says whether s is text without spaces.
func isWord(s string) bool {
	for i := range len(s) {
		if b := s[i]; b <= ' ' || b == 0x7f {
			return false
		}
	}
	return s != ""
}

// hostBytes are the bytes of a host and its port (RFC 3986, section 3.2.2).
var hostBytes = func() (table [256]bool) {
	for b := range tokenBytes {
		table[b] = tokenBytes[b] && !strings.ContainsRune("#^`|", rune(b))
	}
	for _, b := range []byte("[]:();,=") {
		table[b] = true
	}
	return table
}()

// isHost says whether s may stand in a Host field: what RFC 3986 allows in a
// host and its port.
func isHost(s string) bool {
	for i := range len(s) {
		if !hostBytes[s[i]] {
			return false
		}
	}
	return s != ""
}
