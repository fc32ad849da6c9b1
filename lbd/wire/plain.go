package wire

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// plainHead is what the head of a plain request says. It is never changed, so
// that the requests of a connection that come with the same head share it.
type plainHead struct {
	text   string // as it came
	method string
	target string
	url    *url.URL
	host   string
	header http.Header
	length int64 // of the body
	close  bool  // the connection is to end with the answer
}

// readPlain reads a whole head, its blank line included; nil when the request is
// not a plain one, or none.
func readPlain(head string, fields int) *plainHead {
	line, rest, _ := strings.Cut(head, "\r\n")
	p := &plainHead{text: head}
	if !p.line(line) {
		return nil
	}
	header, err := parseFields(rest, fields)
	if err != nil {
		return nil
	}
	p.header = header
	if !p.addressed() || !p.sized() || !p.lasting() {
		return nil
	}
	for _, special := range []string{"Transfer-Encoding", "Expect", "Upgrade", "Trailer", "Pragma"} {
		if _, given := header[special]; given {
			return nil
		}
	}
	return p
}

// line reads the request's line.
func (p *plainHead) line(line string) bool {
	method, rest, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(rest, " ")
	if !isToken(method) || method == http.MethodConnect || version != "HTTP/1.1" || !isWord(target) ||
		target[0] != '/' || strings.HasPrefix(target, "//") {
		return false
	}
	u, err := url.ParseRequestURI(target)
	p.method, p.target, p.url = method, target, u
	return err == nil
}

// addressed takes the Host field out of the header, which there must be one of.
func (p *plainHead) addressed() bool {
	hosts := p.header["Host"]
	if len(hosts) != 1 || !isHost(hosts[0]) {
		return false
	}
	p.host = hosts[0]
	delete(p.header, "Host")
	return true
}

// sized reads the body's length.
func (p *plainHead) sized() bool {
	values, given := p.header["Content-Length"]
	if !given {
		return true
	}
	if len(values) != 1 || values[0] == "" || !isDigit(values[0][0]) { // ParseUint takes no sign
		return false
	}
	n, err := strconv.ParseUint(values[0], 10, 63)
	p.length = int64(n)
	return err == nil
}

// lasting reads whether the connection is to be kept.
func (p *plainHead) lasting() bool {
	values, given := p.header["Connection"]
	if !given {
		return true
	}
	if len(values) != 1 {
		return false
	}
	p.close = strings.EqualFold(values[0], "close")
	return p.close || strings.EqualFold(values[0], "keep-alive")
}
