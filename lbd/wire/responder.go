package wire

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// What is held back of an answer.
const (
	// heldBody is how much of a body of unknown length is held until its handler
	// returns or flushes; net/http holds as much.
	heldBody = 2 << 10
	// outBuffer is how much is collected before it is sent unasked.
	outBuffer = 4 << 10
)

var outBuffers = bufferPool{size: outBuffer}

// errBodyNotAllowed and the like are net/http's, which handlers compare with.
var errTooLong = http.ErrContentLength

// responder writes the answer to a plain request: the http.ResponseWriter of its handler.
type responder struct {
	s      *session
	asked  *plainHead
	body   *requestBody
	header http.Header
	status int // 0 until it is written
	length int64
	sealed bool // the head is complete
	chunks bool
	closes bool // the connection ends with this answer
	bare   bool // it has no body
	until  time.Time
	said   int64   // bytes of the body, as the handler wrote it
	held   *buffer // of a body before the head is complete; nil while there is none
	out    *buffer // what is to be sent; nil while there is nothing
	failed error
}

func (r *responder) begin(s *session, head *plainHead, body *requestBody) {
	header := r.header
	if header == nil {
		header = http.Header{}
	}
	clear(header)
	*r = responder{s: s, asked: head, body: body, header: header, length: -1, closes: head.close}
}

// Header is what is sent before the body; changes after WriteHeader do nothing.
func (r *responder) Header() http.Header { return r.header }

// SetReadDeadline bounds reads of the request's body (see http.ResponseController).
func (r *responder) SetReadDeadline(t time.Time) error {
	r.body.until = t
	return nil
}

// SetWriteDeadline bounds writes that the client does not take at once.
func (r *responder) SetWriteDeadline(t time.Time) error {
	r.until = t
	return nil
}

// WriteHeader sets the answer's status and takes its header for complete.
// Interim answers (1xx) are left out.
func (r *responder) WriteHeader(status int) {
	if r.status != 0 || (status >= 100 && status < 200 && status != http.StatusSwitchingProtocols) {
		return
	}
	if status < 100 || status > 999 {
		panic("writing an answer: invalid status " + strconv.Itoa(status))
	}
	r.status = status
	r.bare = r.asked.method == http.MethodHead || !mayHaveBody(status)
	if values := r.header["Content-Length"]; len(values) > 0 {
		if n, err := strconv.ParseUint(values[0], 10, 63); err == nil {
			r.length = int64(n)
		}
	}
	r.open()
}

// Write adds to the body.
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
	r.said += int64(len(p))
	if r.length >= 0 && r.said > r.length {
		return 0, errTooLong
	}
	if !r.sealed && r.length < 0 && int(r.said) <= heldBody {
		r.hold(p)
		return len(p), nil
	}
	r.seal(false, p)
	r.add(p)
	if len(r.out.b) >= outBuffer {
		if err := r.send(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush sends what has been written.
func (r *responder) Flush() { _ = r.FlushError() } // which later writes tell again

// FlushError sends what has been written and tells whether that worked.
func (r *responder) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.seal(false, nil)
	return r.send()
}

// hold keeps a piece of the body until its length is known or does not matter.
func (r *responder) hold(p []byte) {
	if r.held == nil {
		r.held = outBuffers.take()
		r.held.b = r.held.b[:0]
	}
	r.held.b = append(r.held.b, p...)
}

// finish completes the answer and sends it; it says whether the connection can
// take another request.
func (r *responder) finish() bool {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.seal(true, nil)
	if r.chunks && !r.bare {
		r.out = r.buffer()
		r.out.b = append(r.out.b, "0\r\n\r\n"...)
	}
	err := r.send()
	if r.length >= 0 && r.said != r.length && !r.bare {
		return false // the client waits for more than there is
	}
	return err == nil && !r.closes
}

// drop lets go of an answer that is cut off.
func (r *responder) drop() {
	for _, b := range []**buffer{&r.held, &r.out} {
		if *b != nil {
			putOut(*b)
			*b = nil
		}
	}
}

// buffer is what is to be sent, to be added to.
func (r *responder) buffer() *buffer {
	if r.out == nil {
		r.out = outBuffers.take()
		r.out.b = r.out.b[:0]
	}
	return r.out
}

func putOut(b *buffer) {
	b.b = b.b[:cap(b.b)]
	outBuffers.put(b)
}

// send writes what is to be sent.
func (r *responder) send() error {
	if r.out == nil {
		return r.failed
	}
	if r.failed == nil && len(r.out.b) > 0 {
		r.failed = r.s.write(r.out.b, r.until)
	}
	putOut(r.out)
	r.out = nil
	return r.failed
}

// add puts a piece of the body behind what is to be sent.
func (r *responder) add(p []byte) {
	out := r.buffer()
	switch {
	case r.bare:
	case r.chunks:
		out.b = strconv.AppendUint(out.b, uint64(len(p)), 16)
		out.b = append(out.b, "\r\n"...)
		out.b = append(out.b, p...)
		out.b = append(out.b, "\r\n"...)
	default:
		out.b = append(out.b, p...)
	}
}

// open writes the status line and the fields that the handler set, but for those
// that depend on the body.
func (r *responder) open() {
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
	var room [24]string
	names := room[:0]
	for name := range r.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch name {
		case "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		case "Connection":
			r.closes = r.closes || listed(r.header[name], "close")
			continue
		}
		if !isToken(name) {
			continue // as net/http: it could end the head early
		}
		for _, value := range r.header[name] {
			b = appendField(b, name, value)
		}
	}
	r.out.b = b
}

// appendField writes a field; what would end its line becomes a space.
func appendField(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	if strings.ContainsAny(value, "\r\n") {
		value = strings.NewReplacer("\n", " ", "\r", " ").Replace(value)
	}
	b = append(b, strings.Trim(value, " \t")...)
	return append(b, "\r\n"...)
}

// seal completes the head, once: with the length of a body that is there as a
// whole, else so that its end will show. next is what comes of the body first
// where nothing of it is held.
func (r *responder) seal(whole bool, next []byte) {
	if r.sealed {
		return
	}
	r.sealed = true
	first := next
	if r.held != nil {
		first = r.held.b
	}
	b := r.buffer().b
	if _, set := r.header["Content-Type"]; !set && len(first) > 0 && r.header.Get("Content-Encoding") == "" {
		b = appendField(b, "Content-Type", http.DetectContentType(first))
	}
	if _, set := r.header["Date"]; !set {
		b = appendField(b, "Date", r.s.fast.dates.now())
	}
	switch {
	case r.length >= 0 && r.status != http.StatusNoContent:
		b = strconv.AppendInt(append(b, "Content-Length: "...), r.length, 10)
		b = append(b, "\r\n"...)
	case !mayHaveBody(r.status):
	case whole && (r.asked.method != http.MethodHead || r.said > 0):
		r.length = r.said
		b = strconv.AppendInt(append(b, "Content-Length: "...), r.length, 10)
		b = append(b, "\r\n"...)
	case !r.bare:
		r.chunks = true
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	r.closes = r.closes || r.body.left > maxUnreadBody || r.s.fast.ending()
	if r.closes {
		b = append(b, "Connection: close\r\n"...)
	}
	r.out.b = append(b, "\r\n"...)
	if r.held != nil {
		r.add(r.held.b)
		putOut(r.held)
		r.held = nil
	}
}

// dates keeps the Date field's text of the second at hand.
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
