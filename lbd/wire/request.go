package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// smallBody is up to which size a body in memory is sent before the answer
	// is looked at: it fits in what the two sockets hold, so that a host which
	// answers without reading it cannot stall the exchange.
	smallBody = 64 << 10
	// uploadGrace is how long an answered request may go on being sent before
	// its connection is given up.
	uploadGrace = 50 * time.Millisecond
)

// outgoing is a request that was checked, and what is to be written of it.
type outgoing struct {
	req    *http.Request
	body   io.ReadCloser // nil for none
	addr   string        // HOST:PORT to connect to
	method string
	host   string // of the Host field
	target string // of the request line
	length int64  // of the body, -1 when it is not known
	close  bool   // the connection is to end with this exchange
	sized  sized  // here so that it is not allocated by itself
}

// prepare checks a request. What it refuses could not be sent, or could be
// taken by its reader for something else.
func prepare(req *http.Request, scheme string) (*outgoing, error) {
	switch {
	case req.URL == nil:
		return nil, errors.New("checking a request: it has no URL")
	case req.URL.Scheme != scheme:
		return nil, fmt.Errorf("checking a request: scheme: want %s, got %q", wanted(scheme), req.URL.Scheme)
	case req.URL.Host == "":
		return nil, errors.New("checking a request: its URL has no host")
	case len(req.Trailer) > 0:
		return nil, errors.New("checking a request: trailers are not sent")
	}
	out := &outgoing{req: req, body: req.Body, addr: hostPort(req), method: req.Method, host: req.Host, target: req.URL.RequestURI(), length: req.ContentLength}
	if out.method == "" {
		out.method = http.MethodGet
	}
	if out.host == "" {
		out.host = req.URL.Host
	}
	out.host = withoutZone(out.host)
	if err := out.check(); err != nil {
		return nil, fmt.Errorf("checking a request: %w", err)
	}
	out.close = req.Close || listed(req.Header["Connection"], "close")
	return out, out.measure()
}

// wanted is which schemes a transport takes that carries one itself.
func wanted(scheme string) string {
	if scheme == "http" {
		return "http or https"
	}
	return scheme
}

// check looks for bytes that would end a line or a word early.
func (o *outgoing) check() error {
	switch {
	case !isToken(o.method) || o.method == http.MethodConnect:
		return fmt.Errorf("method: got %q", o.method)
	case !isWord(o.target):
		return errors.New("target: it holds a space or a control character")
	case !isHost(o.host):
		return fmt.Errorf("host: got %q", o.host)
	}
	for name, values := range o.req.Header {
		if !isToken(name) {
			return fmt.Errorf("header: name %q", name)
		}
		for _, v := range values {
			if !isText(v) {
				return fmt.Errorf("header %s: its value holds a control character", name) // which may be secret
			}
		}
	}
	return nil
}

// measure settles how long the body is.
func (o *outgoing) measure() error {
	chunked := len(o.req.TransferEncoding) > 0 && o.req.TransferEncoding[0] == "chunked"
	if o.body == http.NoBody && !chunked {
		o.body = nil
	}
	switch {
	case o.body == nil && o.length > 0:
		return fmt.Errorf("checking a request: content length %d without a body", o.length)
	case o.body == nil:
		o.length = 0
	case o.length <= 0 || chunked:
		o.length = -1
	}
	return nil
}

// hostPort is where a request's connection goes.
func hostPort(req *http.Request) string {
	if req.URL.Port() != "" {
		return req.URL.Host
	}
	port := ":80"
	if req.URL.Scheme == "https" {
		port = ":443"
	}
	return strings.TrimSuffix(req.URL.Host, ":") + port
}

// withoutZone takes the zone out of an IPv6 host: it means something on this
// machine only (RFC 6874, section 4).
func withoutZone(host string) string {
	if !strings.HasPrefix(host, "[") {
		return host
	}
	end := strings.LastIndexByte(host, ']')
	zone := strings.LastIndexByte(host[:max(end, 0)], '%')
	if zone < 0 {
		return host
	}
	return host[:zone] + host[end:]
}

// send writes a request. It returns with the body sent, or about to be sent by
// an upload.
func (c *conn) send(out *outgoing) error {
	bw := writers.Get().(*bufio.Writer)
	bw.Reset(c)
	out.writeHead(bw)
	inMemory := out.req.GetBody != nil
	switch {
	case out.length == 0:
		return finish(bw, nil)
	case inMemory && out.length > 0 && out.length <= smallBody:
		return finish(bw, out.writeBody(bw))
	}
	c.upload = &upload{done: make(chan struct{})}
	go c.upload.run(c, out, bw, inMemory)
	return nil
}

// finish flushes a writer unless there was an error, and gives it back.
func finish(bw *bufio.Writer, err error) error {
	if err == nil {
		err = bw.Flush()
	}
	bw.Reset(nil)
	writers.Put(bw)
	return err
}

// upload sends a body beside the exchange that it belongs to.
type upload struct {
	done chan struct{}
	err  error // once done
}

func (u *upload) run(c *conn, out *outgoing, bw *bufio.Writer, inMemory bool) {
	if !inMemory {
		u.err = bw.Flush() // the body may take its time
	}
	if u.err != nil {
		closeBody(out.body)
	} else {
		u.err = out.writeBody(bw)
	}
	u.err = finish(bw, u.err)
	close(u.done) // before the connection is cut, so that the reason is known
	var own *bodyError
	if errors.As(u.err, &own) {
		c.abort() // nobody will answer half a request
	}
}

// wait says whether the body was sent whole; it gives it a moment.
func (u *upload) wait() bool {
	select {
	case <-u.done:
		return u.err == nil
	default:
	}
	timer := time.NewTimer(uploadGrace)
	defer timer.Stop()
	select {
	case <-u.done:
		return u.err == nil
	case <-timer.C:
		return false
	}
}

// failed is why the request's own body could not be had, nil if it could.
func (u *upload) failed() error {
	select {
	case <-u.done:
	default:
		return nil
	}
	var own *bodyError
	if errors.As(u.err, &own) {
		return own
	}
	return nil
}

// bodyError is a failure of a request's body, as against one of its connection.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "reading the request's body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// writeHead writes the request line and the fields, sorted by name.
func (o *outgoing) writeHead(bw *bufio.Writer) {
	for _, s := range [...]string{o.method, " ", o.target, " HTTP/1.1\r\nHost: ", o.host, "\r\n"} {
		_, _ = bw.WriteString(s) // a writer keeps its error until it is flushed
	}
	if o.close && !listed(o.req.Header["Connection"], "close") {
		_, _ = bw.WriteString("Connection: close\r\n")
	}
	switch {
	case o.length < 0:
		_, _ = bw.WriteString("Transfer-Encoding: chunked\r\n")
	case o.length > 0 || o.method == http.MethodPost || o.method == http.MethodPut || o.method == http.MethodPatch:
		_, _ = bw.WriteString("Content-Length: ")
		_, _ = bw.Write(strconv.AppendInt(bw.AvailableBuffer(), o.length, 10))
		_, _ = bw.WriteString("\r\n")
	}
	var few [24]string // more fields than most requests have
	names := few[:0]
	for name := range o.req.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		o.writeField(bw, name)
	}
	_, _ = bw.WriteString("\r\n")
}

// writeField writes one header, unless this package writes it itself.
func (o *outgoing) writeField(bw *bufio.Writer, name string) {
	values := o.req.Header[name]
	switch name = textproto.CanonicalMIMEHeaderKey(name); name {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
		return
	case "User-Agent":
		if len(values) == 0 || values[0] == "" {
			return
		}
		values = values[:1]
	}
	for _, v := range values {
		for _, s := range [...]string{name, ": ", textproto.TrimString(v), "\r\n"} {
			_, _ = bw.WriteString(s) // as in writeHead
		}
	}
}

// writeBody writes a request's body and closes it.
func (o *outgoing) writeBody(bw *bufio.Writer) error {
	defer o.body.Close()
	if o.length < 0 {
		w := &chunker{bw: bw}
		_, err := io.Copy(w, o.body)
		if err == nil && w.err == nil {
			_, w.err = bw.WriteString("0\r\n\r\n")
		}
		return apart(err, w.err)
	}
	w := &o.sized
	w.bw, w.left, w.err = bw, o.length, nil
	_, err := io.Copy(w, o.body)
	w.bw = nil
	if err == nil && w.left > 0 {
		err = fmt.Errorf("it is %d bytes shorter than its content length of %d", w.left, o.length)
	}
	return apart(err, w.err)
}

// apart tells a failure of the connection from one of the body.
func apart(err, written error) error {
	if err == nil || written != nil {
		return written
	}
	return &bodyError{err}
}

// sized passes a body of declared length on.
type sized struct {
	bw   *bufio.Writer
	left int64
	err  error // of the connection
}

func (s *sized) Write(p []byte) (int, error) {
	if int64(len(p)) > s.left {
		return 0, errors.New("it is longer than its content length")
	}
	n, err := s.bw.Write(p)
	s.left -= int64(n)
	s.err = err
	return n, err
}

// chunker passes a body of unknown length on, each piece at once.
type chunker struct {
	bw  *bufio.Writer
	err error // of the connection
}

func (c *chunker) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	_, _ = c.bw.Write(append(strconv.AppendInt(c.bw.AvailableBuffer(), int64(len(p)), 16), "\r\n"...)) // as in writeHead
	n, _ := c.bw.Write(p)
	_, _ = c.bw.WriteString("\r\n")
	c.err = c.bw.Flush()
	return n, c.err
}
