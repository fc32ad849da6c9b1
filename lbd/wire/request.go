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
	// maxInlineBody is the largest body in memory that is sent before the response is read. It fits into
	// the buffers of the two sockets, so that a host that responds without reading it cannot block the
	// exchange.
	maxInlineBody = 64 << 10
	// uploadGrace is the time for which the upload of a request may continue after the response has
	// arrived. Then the connection is closed.
	uploadGrace = 50 * time.Millisecond
)

// outgoing is a checked request with the values to write.
type outgoing struct {
	req         *http.Request
	body        io.ReadCloser // nil for none
	addr        string        // HOST:PORT to connect to
	method      string
	host        string      // value of the Host field
	target      string      // target of the request line
	length      int64       // of the body, -1 when it is not known
	close       bool        // the connection ends with this exchange
	sizedWriter sizedWriter // embedded to save an allocation
}

// prepareRequest checks a request. It rejects requests that cannot be sent or that the receiver could
// misinterpret.
func prepareRequest(req *http.Request, scheme string) (*outgoing, error) {
	switch {
	case req.URL == nil:
		return nil, errors.New("checking the request: URL is required")
	case req.URL.Scheme != scheme:
		return nil, fmt.Errorf("checking the request: scheme: must be %s, got %q", acceptedSchemes(scheme), req.URL.Scheme)
	case req.URL.Host == "":
		return nil, errors.New("checking the request: the URL must contain a host")
	case len(req.Trailer) > 0:
		return nil, errors.New("checking the request: trailers are not supported")
	}
	out := &outgoing{req: req, body: req.Body, addr: hostPort(req), method: req.Method, host: req.Host, target: req.URL.RequestURI(), length: req.ContentLength}
	if out.method == "" {
		out.method = http.MethodGet
	}
	if out.host == "" {
		out.host = req.URL.Host
	}
	out.host = withoutZone(out.host)
	if err := out.validate(); err != nil {
		return nil, fmt.Errorf("checking the request: %w", err)
	}
	out.close = req.Close || listContains(req.Header["Connection"], "close")
	return out, out.setLength()
}

// acceptedSchemes returns the schemes that a transport for scheme accepts.
func acceptedSchemes(scheme string) string {
	if scheme == "http" {
		return "http or https"
	}
	return scheme
}

// validate rejects values that contain bytes that end a line or a word.
func (o *outgoing) validate() error {
	switch {
	case !isToken(o.method) || o.method == http.MethodConnect:
		return fmt.Errorf("method: must be an HTTP token other than CONNECT, got %q", o.method)
	case !isWord(o.target):
		return errors.New("target: contains a space or a control character")
	case !isHost(o.host):
		return fmt.Errorf("host: must be a valid host, got %q", o.host)
	}
	for name, values := range o.req.Header {
		if !isToken(name) {
			return fmt.Errorf("header: name must be an HTTP token, got %q", name)
		}
		for _, v := range values {
			if !isText(v) {
				return fmt.Errorf("header %s: value contains a control character", name) // the value may be secret
			}
		}
	}
	return nil
}

// setLength determines the length of the body.
func (o *outgoing) setLength() error {
	chunked := len(o.req.TransferEncoding) > 0 && o.req.TransferEncoding[0] == "chunked"
	if o.body == http.NoBody && !chunked {
		o.body = nil
	}
	switch {
	case o.body == nil && o.length > 0:
		return fmt.Errorf("checking the request: Content-Length %d without a body", o.length)
	case o.body == nil:
		o.length = 0
	case o.length <= 0 || chunked:
		o.length = -1
	}
	return nil
}

// hostPort returns the address to connect to.
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

// withoutZone removes the zone from an IPv6 host: it has a meaning only on this machine (RFC 6874,
// section 4).
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

// sendRequest writes a request. When it returns, the body was sent or an upload is sending it.
func (c *conn) sendRequest(out *outgoing) error {
	bw := writerPool.Get().(*bufio.Writer)
	bw.Reset(c)
	out.writeHead(bw)
	inMemory := out.req.GetBody != nil
	switch {
	case out.length == 0:
		return flushAndPut(bw, nil)
	case inMemory && out.length > 0 && out.length <= maxInlineBody:
		return flushAndPut(bw, out.writeBody(bw))
	}
	c.upload = &upload{done: make(chan struct{})}
	go c.upload.runUpload(c, out, bw, inMemory)
	return nil
}

// flushAndPut flushes a writer unless there was an error, and returns it to the pool.
func flushAndPut(bw *bufio.Writer, err error) error {
	if err == nil {
		err = bw.Flush()
	}
	bw.Reset(nil)
	writerPool.Put(bw)
	return err
}

// upload sends a body concurrently with its exchange.
type upload struct {
	done chan struct{}
	err  error // set once done
}

func (u *upload) runUpload(c *conn, out *outgoing, bw *bufio.Writer, inMemory bool) {
	if !inMemory {
		u.err = bw.Flush() // sending the body may take long
	}
	if u.err != nil {
		closeBody(out.body)
	} else {
		u.err = out.writeBody(bw)
	}
	u.err = flushAndPut(bw, u.err)
	close(u.done) // before the connection is aborted, so that the error is already recorded
	var bodyErr *bodyError
	if errors.As(u.err, &bodyErr) {
		c.abort() // a host does not respond to an incomplete request
	}
}

// finished reports whether the whole body was sent. It waits up to uploadGrace.
func (u *upload) finished() bool {
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

// bodyErr returns the error of reading the request's own body, nil if there was none.
func (u *upload) bodyErr() error {
	select {
	case <-u.done:
	default:
		return nil
	}
	var bodyErr *bodyError
	if errors.As(u.err, &bodyErr) {
		return bodyErr
	}
	return nil
}

// bodyError is a failure of a request's body, as opposed to a failure of its connection.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "reading the request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// writeHead writes the request line and the fields, sorted by name.
func (o *outgoing) writeHead(bw *bufio.Writer) {
	for _, s := range [...]string{o.method, " ", o.target, " HTTP/1.1\r\nHost: ", o.host, "\r\n"} {
		_, _ = bw.WriteString(s) // Flush returns the error
	}
	if o.close && !listContains(o.req.Header["Connection"], "close") {
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
	var few [24]string // enough fields for most requests
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

// writeField writes one field, unless this package generates it.
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
		w := &chunkWriter{bw: bw}
		_, err := io.Copy(w, o.body)
		if err == nil && w.err == nil {
			_, w.err = bw.WriteString("0\r\n\r\n")
		}
		return attributeError(err, w.err)
	}
	w := &o.sizedWriter
	w.bw, w.remaining, w.err = bw, o.length, nil
	_, err := io.Copy(w, o.body)
	w.bw = nil
	if err == nil && w.remaining > 0 {
		err = fmt.Errorf("%d bytes shorter than its Content-Length of %d", w.remaining, o.length)
	}
	return attributeError(err, w.err)
}

// attributeError distinguishes a failure of the connection from one of the body.
func attributeError(err, written error) error {
	if err == nil || written != nil {
		return written
	}
	return &bodyError{err}
}

// sizedWriter writes a body of declared length.
type sizedWriter struct {
	bw        *bufio.Writer
	remaining int64
	err       error // of the connection
}

func (s *sizedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > s.remaining {
		return 0, errors.New("longer than its Content-Length")
	}
	n, err := s.bw.Write(p)
	s.remaining -= int64(n)
	s.err = err
	return n, err
}

// chunkWriter writes a body of unknown length, each piece at once.
type chunkWriter struct {
	bw  *bufio.Writer
	err error // of the connection
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	_, _ = c.bw.Write(append(strconv.AppendInt(c.bw.AvailableBuffer(), int64(len(p)), 16), "\r\n"...)) // as in writeHead
	n, _ := c.bw.Write(p)
	_, _ = c.bw.WriteString("\r\n")
	c.err = c.bw.Flush()
	return n, c.err
}
