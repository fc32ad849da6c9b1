package wire

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// plainHead is the parsed head of a plain request. It is never changed, so that requests on a
// connection with the same head share it.
type plainHead struct {
	text   string // as received
	method string
	target string
	url    *url.URL
	host   string
	header http.Header
	length int64 // of the body
	close  bool  // the connection ends with the response
}

// readPlain parses a complete head, including its blank line. It returns nil when the request is
// invalid or not plain.
func readPlain(head string, fields int) *plainHead {
	line, rest, _ := strings.Cut(head, "\r\n")
	p := &plainHead{text: head}
	if !p.parseLine(line) {
		return nil
	}
	header, err := parseFields(rest, fields)
	if err != nil {
		return nil
	}
	p.header = header
	if !p.extractHost() || !p.parseLength() || !p.parseConnection() {
		return nil
	}
	for _, special := range []string{"Transfer-Encoding", "Expect", "Upgrade", "Trailer", "Pragma"} {
		if _, given := header[special]; given {
			return nil
		}
	}
	return p
}

// parseLine parses the request line.
func (p *plainHead) parseLine(line string) bool {
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

// extractHost requires exactly one Host field and removes it from the header.
func (p *plainHead) extractHost() bool {
	hosts := p.header["Host"]
	if len(hosts) != 1 || !isHost(hosts[0]) {
		return false
	}
	p.host = hosts[0]
	delete(p.header, "Host")
	return true
}

// parseLength parses the body's length.
func (p *plainHead) parseLength() bool {
	values, given := p.header["Content-Length"]
	if !given {
		return true
	}
	if len(values) != 1 || values[0] == "" || !isDigit(values[0][0]) { // ParseUint accepts no sign
		return false
	}
	n, err := strconv.ParseUint(values[0], 10, 63)
	p.length = int64(n)
	return err == nil
}

// parseConnection parses whether the connection is kept open.
func (p *plainHead) parseConnection() bool {
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
