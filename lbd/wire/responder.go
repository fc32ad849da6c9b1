package wire

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Limits of the buffered part of a response.
const (
	// maxBufferedBody is the maximum number of bytes of a body of unknown length that are buffered
	// until its handler returns or flushes, as in net/http.
	maxBufferedBody = 2 << 10
	// outBufferSize is the number of collected bytes that are sent without a flush.
	outBufferSize = 4 << 10
)

var outBuffers = bufferPool{size: outBufferSize}

// errTooLong is net/http's error, which handlers compare with.
var errTooLong = http.ErrContentLength

// responder is the http.ResponseWriter of the handler of a plain request.
type responder struct {
	session       *session
	request       *plainHead
	body          *requestBody
	header        http.Header
	status        int // 0 until it is written
	length        int64
	headComplete  bool // the head is complete
	chunks        bool
	closes        bool // the connection ends with this response
	bodyless      bool // the response has no body
	writeDeadline time.Time
	written       int64   // bytes of the body that the handler wrote
	pendingBody   *buffer // the body, until the head is complete; nil while empty
	out           *buffer // bytes to send; nil while empty
	failed        error
}

func (r *responder) reset(s *session, head *plainHead, body *requestBody) {
	header := r.header
	if header == nil {
		header = http.Header{}
	}
	clear(header)
	*r = responder{session: s, request: head, body: body, header: header, length: -1, closes: head.close}
}

// Header returns the header that is sent before the body. Changes after WriteHeader have no effect.
func (r *responder) Header() http.Header { return r.header }

// SetReadDeadline limits reads of the request's body (see http.ResponseController).
func (r *responder) SetReadDeadline(t time.Time) error {
	r.body.deadline = t
	return nil
}

// SetWriteDeadline limits writes that block because the client does not read.
func (r *responder) SetWriteDeadline(t time.Time) error {
	r.writeDeadline = t
	return nil
}

// WriteHeader sets the status and completes the header. Interim responses (1xx) are not sent.
func (r *responder) WriteHeader(status int) {
	if r.status != 0 || (status >= 100 && status < 200 && status != http.StatusSwitchingProtocols) {
		return
	}
	if status < 100 || status > 999 {
		panic("write a response: invalid status " + strconv.Itoa(status))
	}
	r.status = status
	r.bodyless = r.request.method == http.MethodHead || !mayHaveBody(status)
	if values := r.header["Content-Length"]; len(values) > 0 {
		if n, err := strconv.ParseUint(values[0], 10, 63); err == nil {
			r.length = int64(n)
		}
	}
	r.writeStatusAndFields()
}

// Write appends to the body.
func (r *responder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	switch {
	case r.failed != nil:
		return 0, r.failed
	case len(p) == 0:
		return 0, nil
	case !mayHaveBody(r.status):
		return 0, http.ErrBodyNotAllowed
	}
	r.written += int64(len(p))
	if r.length >= 0 && r.written > r.length {
		return 0, errTooLong
	}
	if !r.headComplete && r.length < 0 && int(r.written) <= maxBufferedBody {
		r.bufferBody(p)
		return len(p), nil
	}
	r.completeHead(false, p)
	r.appendBody(p)
	if len(r.out.b) >= outBufferSize {
		if err := r.sendResponse(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush sends the buffered bytes.
func (r *responder) Flush() { _ = r.FlushError() } // later writes return the error

// FlushError sends the buffered bytes and returns the error.
func (r *responder) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.completeHead(false, nil)
	return r.sendResponse()
}

// bufferBody buffers a piece of the body until its length is known or not needed.
func (r *responder) bufferBody(p []byte) {
	if r.pendingBody == nil {
		r.pendingBody = outBuffers.get()
		r.pendingBody.b = r.pendingBody.b[:0]
	}
	r.pendingBody.b = append(r.pendingBody.b, p...)
}

// finish completes and sends the response. It reports whether the connection can be reused.
func (r *responder) finish() bool {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.completeHead(true, nil)
	if r.chunks && !r.bodyless {
		r.out = r.buffer()
		r.out.b = append(r.out.b, "0\r\n\r\n"...)
	}
	err := r.sendResponse()
	if r.length >= 0 && r.written != r.length && !r.bodyless {
		return false // the client expects more bytes
	}
	return err == nil && !r.closes
}

// releaseBuffers releases the buffers of a response that was aborted.
func (r *responder) releaseBuffers() {
	for _, b := range []**buffer{&r.pendingBody, &r.out} {
		if *b != nil {
			putOutBuffer(*b)
			*b = nil
		}
	}
}

// buffer returns the send buffer, for appending.
func (r *responder) buffer() *buffer {
	if r.out == nil {
		r.out = outBuffers.get()
		r.out.b = r.out.b[:0]
	}
	return r.out
}

func putOutBuffer(b *buffer) {
	b.b = b.b[:cap(b.b)]
	outBuffers.putBuffer(b)
}

// sendResponse writes the send buffer.
func (r *responder) sendResponse() error {
	if r.out == nil {
		return r.failed
	}
	if r.failed == nil && len(r.out.b) > 0 {
		r.failed = r.session.writeBytes(r.out.b, r.writeDeadline)
	}
	putOutBuffer(r.out)
	r.out = nil
	return r.failed
}

// appendBody appends a piece of the body to the send buffer.
func (r *responder) appendBody(p []byte) {
	out := r.buffer()
	switch {
	case r.bodyless:
	case r.chunks:
		out.b = strconv.AppendUint(out.b, uint64(len(p)), 16)
		out.b = append(out.b, "\r\n"...)
		out.b = append(out.b, p...)
		out.b = append(out.b, "\r\n"...)
	default:
		out.b = append(out.b, p...)
	}
}

// writeStatusAndFields writes the status line and the fields that the handler set, except those that depend on the
// body.
func (r *responder) writeStatusAndFields() {
	b := r.buffer().b
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(r.status), 10)
	b = append(b, ' ')
	if text := http.StatusText(r.status); text != "" {
		b = append(b, text...)
	} else {
		b = append(append(b, "status code "...), strconv.Itoa(r.status)...)
	}
	b = append(b, "\r\n"...)
	var space [24]string
	names := space[:0]
	for name := range r.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch name {
		case "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		case "Connection":
			r.closes = r.closes || listContains(r.header[name], "close")
			continue
		}
		if !isToken(name) {
			continue // as in net/http: the field could end the head early
		}
		for _, value := range r.header[name] {
			b = appendField(b, name, value)
		}
	}
	r.out.b = b
}

// appendField writes a field. Line breaks in the value become spaces.
func appendField(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	if strings.ContainsAny(value, "\r\n") {
		value = strings.NewReplacer("\n", " ", "\r", " ").Replace(value)
	}
	b = append(b, strings.Trim(value, " \t")...)
	return append(b, "\r\n"...)
}

// completeHead completes the head, once: with a Content-Length if the body is complete, otherwise chunked.
// next is the first piece of the body if none is buffered.
func (r *responder) completeHead(whole bool, next []byte) {
	if r.headComplete {
		return
	}
	r.headComplete = true
	first := next
	if r.pendingBody != nil {
		first = r.pendingBody.b
	}
	b := r.buffer().b
	if _, set := r.header["Content-Type"]; !set && len(first) > 0 && r.header.Get("Content-Encoding") == "" {
		b = appendField(b, "Content-Type", http.DetectContentType(first))
	}
	if _, set := r.header["Date"]; !set {
		b = appendField(b, "Date", r.session.fastPath.dates.now())
	}
	switch {
	case r.length >= 0 && r.status != http.StatusNoContent:
		b = strconv.AppendInt(append(b, "Content-Length: "...), r.length, 10)
		b = append(b, "\r\n"...)
	case !mayHaveBody(r.status):
	case whole && (r.request.method != http.MethodHead || r.written > 0):
		r.length = r.written
		b = strconv.AppendInt(append(b, "Content-Length: "...), r.length, 10)
		b = append(b, "\r\n"...)
	case !r.bodyless:
		r.chunks = true
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	r.closes = r.closes || r.body.remaining > maxUnreadBody || r.session.fastPath.isClosing()
	if r.closes {
		b = append(b, "Connection: close\r\n"...)
	}
	r.out.b = append(b, "\r\n"...)
	if r.pendingBody != nil {
		r.appendBody(r.pendingBody.b)
		putOutBuffer(r.pendingBody)
		r.pendingBody = nil
	}
}

// dates caches the text of the Date field for the current second.
type dates struct{ latest atomic.Pointer[date] }

type date struct {
	second int64
	text   string
}

func (d *dates) now() string {
	now := time.Now()
	if at := d.latest.Load(); at != nil && at.second == now.Unix() {
		return at.text
	}
	at := &date{now.Unix(), now.UTC().Format(http.TimeFormat)}
	d.latest.Store(at)
	return at.text
}

var (
	_ http.Flusher                                  = (*responder)(nil)
	_ interface{ FlushError() error }               = (*responder)(nil)
	_ interface{ SetReadDeadline(time.Time) error } = (*responder)(nil)
)
