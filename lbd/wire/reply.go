package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// pageSize is the initial memory for a response. Most responses fit, so that one read is enough.
const pageSize = 64 << 10

// page is memory for one response.
type page struct{ b []byte }

// pagePool is shared by all pollers. A response is processed at once, so a few pages serve hundreds of
// hosts and stay in the processor's cache.
var pagePool = sync.Pool{New: func() any { return &page{make([]byte, pageSize)} }}

// pollRequest is the request of all replies.
var pollRequest = &http.Request{Method: http.MethodGet}

// reply is a response that is read as a whole. It keeps the head of the previous one.
type reply struct {
	lastHead []byte        // the text of head
	head     http.Response // the parsed head

	started       bool  // bytes of the response have arrived
	page          *page // nil while empty
	n             int   // bytes in page
	headRemaining int   // remaining bytes for heads
	maxBody       int   // maximum bytes of the body
	scan          headScanner
	headStart     int  // start of the current head in page
	complete      bool // the final head has arrived
	bodyStart     int  // start of the body in page
	bodyEnd       int  // end of the decoded body in page
	undecoded     int  // start of the bytes that are not decoded yet
	body          body // the decoder
	probeByte     [1]byte
}

// reset prepares a reply for the next response.
func (r *reply) reset(maxHead, limit int) {
	r.release()
	r.started, r.complete, r.headRemaining, r.maxBody, r.scan = false, false, maxHead, limit, headScanner{}
	r.headStart, r.bodyStart, r.bodyEnd, r.undecoded = 0, 0, 0, 0
}

// release returns the memory to the pool.
func (r *reply) release() {
	if r.page != nil {
		pagePool.Put(r.page)
	}
	r.page, r.n, r.bodyStart, r.bodyEnd = nil, 0, 0, 0
}

// releaseIfEmpty returns the memory to the pool while nothing has arrived.
func (r *reply) releaseIfEmpty() {
	if r.n == 0 {
		r.release()
	}
}

// status returns the status of the response, 0 before its head has arrived.
func (r *reply) status() int {
	if !r.complete {
		return 0
	}
	return r.head.StatusCode
}

// content returns the body, nil if there is none.
func (r *reply) content() []byte {
	if r.page == nil {
		return nil
	}
	return r.page.b[r.bodyStart:r.bodyEnd:r.bodyEnd]
}

// reusable reports whether the connection can be reused after a complete response: no byte follows it.
func (r *reply) reusable() bool { return !r.head.Close && r.undecoded == r.n }

// freeSpace returns the memory for the next bytes: at least one byte.
func (r *reply) freeSpace() []byte {
	switch {
	case r.page == nil:
		r.page = pagePool.Get().(*page)
	case r.n == len(r.page.b):
		larger := &page{make([]byte, 2*len(r.page.b))}
		copy(larger.b, r.page.b)
		pagePool.Put(r.page)
		r.page = larger
	}
	return r.page.b[r.n:]
}

// recordRead records that n bytes were read into the free space, or the error of the read, and reports
// whether the response is complete.
func (r *reply) recordRead(n int, err error) (done bool, fail error) {
	if n > 0 {
		r.started = true
		r.n += n
		return r.advance()
	}
	if errors.Is(err, io.EOF) {
		if r.complete && r.body.frame == frameUntilClose {
			return true, nil
		}
		err = io.ErrUnexpectedEOF
	}
	return true, fmt.Errorf("reading the response: %w", err)
}

// advance parses and decodes the bytes that have arrived.
func (r *reply) advance() (done bool, fail error) {
	for !r.complete {
		complete, err := r.readHead()
		if err != nil {
			return true, fmt.Errorf("reading the response header: %w", err)
		}
		if !complete {
			return false, nil
		}
	}
	if r.body.frame == frameNone {
		return true, nil
	}
	given, taken, err := r.body.decode(r.page.b[r.bodyEnd:r.n], r.page.b[r.undecoded:r.n])
	r.bodyEnd, r.undecoded = r.bodyEnd+given, r.undecoded+taken
	switch {
	case r.bodyEnd-r.bodyStart > r.maxBody || r.body.frame == frameSized && r.head.ContentLength > int64(r.maxBody):
		return true, ErrTooLong
	case errors.Is(err, io.EOF):
		return true, nil
	case err != nil:
		return true, fmt.Errorf("reading the response: %w", err)
	}
	return false, nil
}

// readHead parses the current head and reports whether all of it had arrived. complete is set by
// the first head that is not interim.
func (r *reply) readHead() (complete bool, err error) {
	unread := r.page.b[r.headStart:r.n]
	size, err := r.scan.findEnd(unread)
	switch {
	case err != nil:
		return false, err
	case size > r.headRemaining || size == 0 && len(unread) >= r.headRemaining:
		return false, malformed("the header is too long")
	case size == 0:
		return false, nil
	}
	if err := r.parse(unread[:size], r.scan.lines-1); err != nil {
		return false, err
	}
	r.headRemaining, r.headStart, r.scan = r.headRemaining-size, r.headStart+size, headScanner{}
	switch {
	case r.head.StatusCode == http.StatusSwitchingProtocols:
		return false, malformed("status 101, but no protocol upgrade was requested")
	case r.head.StatusCode < http.StatusOK:
		return true, nil
	}
	r.complete, r.bodyStart, r.bodyEnd, r.undecoded = true, r.headStart, r.headStart, r.headStart
	r.body.resp, r.body.frame, r.body.remaining, r.body.chunks = &r.head, frameOf(&r.head), r.head.ContentLength, chunkDecoder{}
	return true, nil
}

// parse parses a head with the given number of fields into r.head, unless it equals the last one.
func (r *reply) parse(head []byte, fields int) error {
	if bytes.Equal(head, r.lastHead) {
		return nil
	}
	r.lastHead = r.lastHead[:0]
	r.head = http.Response{Request: pollRequest}
	if err := parseHead(string(head), fields, &r.head); err != nil {
		return err
	}
	if err := interpretHead(&r.head); err != nil {
		return err
	}
	r.lastHead = append(r.lastHead, head...)
	return nil
}
