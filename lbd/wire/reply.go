package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// pageBytes is the memory that an answer is read into at first: it holds all of
// what most hosts answer, so that one read brings it.
const pageBytes = 64 << 10

// page is memory for one answer.
type page struct{ b []byte }

// pages are shared by all pollers: an answer is read and done with at once, so a
// few of them serve hundreds of hosts and stay in the processor's cache.
var pages = sync.Pool{New: func() any { return &page{make([]byte, pageBytes)} }}

// asked is the request whose answers replies are.
var asked = &http.Request{Method: http.MethodGet}

// reply is an answer that is read as a whole, and what is known of the one before.
type reply struct {
	known []byte        // the last head that was not interim
	head  http.Response // what it says

	begun    bool  // something of the answer has come
	page     *page // nil while nothing is in it
	n        int   // bytes in it
	headLeft int   // bytes that heads may have yet
	most     int   // bytes that the body may have
	scan     scan
	at       int  // where in page the head at hand begins
	whole    bool // the last head has come
	start    int  // of the body
	end      int  // of what is decoded of it
	next     int  // what is not decoded yet
	body     body // decodes
	one      [1]byte
}

// begin makes a reply ready for the next answer.
func (r *reply) begin(maxHead, most int) {
	r.release()
	r.begun, r.whole, r.headLeft, r.most, r.scan = false, false, maxHead, most, scan{}
	r.at, r.start, r.end, r.next = 0, 0, 0, 0
}

// release gives the memory back.
func (r *reply) release() {
	if r.page != nil {
		pages.Put(r.page)
	}
	r.page, r.n, r.start, r.end = nil, 0, 0, 0
}

// releaseIfEmpty gives the memory back while nothing has come.
func (r *reply) releaseIfEmpty() {
	if r.n == 0 {
		r.release()
	}
}

// status is the answer's, 0 where its head has not come.
func (r *reply) status() int {
	if !r.whole {
		return 0
	}
	return r.head.StatusCode
}

// content is the body; nil where there is none.
func (r *reply) content() []byte {
	if r.page == nil {
		return nil
	}
	return r.page.b[r.start:r.end:r.end]
}

// lasting says whether the connection can be asked again after a whole answer:
// nothing came behind it.
func (r *reply) lasting() bool { return !r.head.Close && r.next == r.n }

// room is where the next bytes go: at least one.
func (r *reply) room() []byte {
	switch {
	case r.page == nil:
		r.page = pages.Get().(*page)
	case r.n == len(r.page.b):
		larger := &page{make([]byte, 2*len(r.page.b))}
		copy(larger.b, r.page.b)
		pages.Put(r.page)
		r.page = larger
	}
	return r.page.b[r.n:]
}

// took accounts for n bytes in room, or for the error that came instead, and says
// whether nothing more is to be read.
func (r *reply) took(n int, err error) (over bool, fail error) {
	if n > 0 {
		r.begun = true
		r.n += n
		return r.advance()
	}
	if errors.Is(err, io.EOF) {
		if r.whole && r.body.frame == frameUntilClose {
			return true, nil
		}
		err = io.ErrUnexpectedEOF
	}
	return true, fmt.Errorf("reading the answer: %w", err)
}

// advance reads what has come.
func (r *reply) advance() (over bool, fail error) {
	for !r.whole {
		complete, err := r.readHead()
		if err != nil {
			return true, fmt.Errorf("reading the answer's head: %w", err)
		}
		if !complete {
			return false, nil
		}
	}
	if r.body.frame == frameNone {
		return true, nil
	}
	given, taken, err := r.body.decode(r.page.b[r.end:r.n], r.page.b[r.next:r.n])
	r.end, r.next = r.end+given, r.next+taken
	switch {
	case r.end-r.start > r.most || r.body.frame == frameSized && r.head.ContentLength > int64(r.most):
		return true, ErrTooLong
	case errors.Is(err, io.EOF):
		return true, nil
	case err != nil:
		return true, fmt.Errorf("reading the answer: %w", err)
	}
	return false, nil
}

// readHead reads the head at hand and says whether all of it had come; whole is
// set by the one that is not interim.
func (r *reply) readHead() (complete bool, err error) {
	unread := r.page.b[r.at:r.n]
	size, err := r.scan.end(unread)
	switch {
	case err != nil:
		return false, err
	case size > r.headLeft || size == 0 && len(unread) >= r.headLeft:
		return false, malformed("it is too long")
	case size == 0:
		return false, nil
	}
	if err := r.parse(unread[:size], r.scan.lines-1); err != nil {
		return false, err
	}
	r.headLeft, r.at, r.scan = r.headLeft-size, r.at+size, scan{}
	switch {
	case r.head.StatusCode == http.StatusSwitchingProtocols:
		return false, malformed("status 101, but no other protocol was asked for")
	case r.head.StatusCode < http.StatusOK:
		return true, nil
	}
	r.whole, r.start, r.end, r.next = true, r.at, r.at, r.at
	r.body.resp, r.body.frame, r.body.left, r.body.chunks = &r.head, frameOf(&r.head), r.head.ContentLength, chunks{}
	return true, nil
}

// parse reads a head with so many fields into r.head, where it may be already.
func (r *reply) parse(head []byte, fields int) error {
	if bytes.Equal(head, r.known) {
		return nil
	}
	r.known = r.known[:0]
	r.head = http.Response{Request: asked}
	if err := parseHead(string(head), fields, &r.head); err != nil {
		return err
	}
	if err := settle(&r.head); err != nil {
		return err
	}
	r.known = append(r.known, head...)
	return nil
}
