package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrTooLong says that an answer is longer than its reader takes.
var ErrTooLong = errors.New("the answer is too long")

// errStale says that a connection was closed, or spoken on, while nothing was
// asked.
var errStale = errors.New("the connection was closed while it was idle")

// Poller asks one host for small documents over and over, by GET, on one
// connection that it keeps. It holds answers to the same rules as Transport and
// costs less: the request is written from bytes that were made once, its answer
// is read into memory that is held from its first byte to Release, a head that is
// the same as the last is not parsed again, and nothing is allocated unless
// something changed. It belongs to one goroutine; only Abort may come from
// elsewhere.
type Poller struct {
	opts Options
	base string // URL of the host, without a slash at its end
	most int    // bytes of a body

	url     string // that request is for
	request []byte // as it is sent
	addr    string

	mu      sync.Mutex
	nc      net.Conn // nil while there is none; changed by the owner only
	aborted bool

	raw   syscall.RawConn       // of nc; nil where its readiness cannot be asked for
	step  func(fd uintptr) bool // made once
	sent  bool                  // the request of the exchange at hand
	fail  error                 // of the exchange at hand
	reply reply
}

// NewPoller makes a poller of the host at an http URL, an https one where
// Options.Direct is set, whose path, if any, comes before all paths that are asked
// for. A body of more than most bytes is not taken. Of the other options it has use
// for those of the dialer, TLS and MaxHeadBytes.
func NewPoller(o Options, base string, most int) *Poller {
	p := &Poller{opts: o.orDefault(), base: strings.TrimRight(base, "/"), most: most}
	p.step = p.stepWhenReady
	return p
}

// Get asks for a path and returns the answer, whose body is valid until Release
// or the next Get. It waits until the deadline at most, and fails with the cause
// of ctx when a connection is not had before that ends. An answer that is not
// HTTP/1.1 is ErrMalformed, one whose body is longer than was agreed ErrTooLong (its
// status is returned all the same), a host that does not answer in time a net.Error that says Timeout. A connection
// that turns out to be closed is replaced once.
func (p *Poller) Get(ctx context.Context, path string, deadline time.Time) (status int, body []byte, err error) {
	p.Release()
	if err := p.prepare(path); err != nil {
		return 0, nil, err
	}
	if p.nc != nil {
		if err = p.exchange(deadline); err != nil && !p.mayRepeat(err) {
			return p.reply.status(), nil, fmt.Errorf("asking %s: %w", p.addr, err)
		}
	}
	if p.nc == nil {
		if err := p.dial(ctx, deadline); err != nil {
			return 0, nil, err
		}
		if err := p.exchange(deadline); err != nil {
			return p.reply.status(), nil, fmt.Errorf("asking %s: %w", p.addr, err)
		}
	}
	return p.reply.status(), p.reply.content(), nil
}

// Release gives the memory of the last answer back.
func (p *Poller) Release() { p.reply.release() }

// Abort makes a Get that is under way, and every later one, fail.
func (p *Poller) Abort() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aborted = true
	if p.nc != nil {
		p.nc.Close()
	}
}

// Close closes the connection; another Get opens a new one.
func (p *Poller) Close() {
	p.Release()
	p.hangUp()
}

// prepare makes the request for a path, unless the last was for it as well.
func (p *Poller) prepare(path string) error {
	if len(p.url) == len(p.base)+len(path) && strings.HasSuffix(p.url, path) {
		return nil
	}
	url := p.base + path
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	out, err := prepare(req, p.opts.scheme())
	if err != nil {
		return err
	}
	var text bytes.Buffer
	bw := bufio.NewWriter(&text)
	out.writeHead(bw)
	if err := bw.Flush(); err != nil {
		return err
	}
	p.url, p.request, p.addr = url, text.Bytes(), out.addr
	return nil
}

// dial opens a connection.
func (p *Poller) dial(ctx context.Context, deadline time.Time) error {
	p.mu.Lock()
	aborted := p.aborted
	p.mu.Unlock()
	if aborted {
		return net.ErrClosed
	}
	limited, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	nc, err := p.opts.DialContext(limited, "tcp", p.addr)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("asking %s: %w", p.addr, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.aborted {
		nc.Close()
		return net.ErrClosed
	}
	p.nc, p.raw = nc, rawOf(nc)
	return nil
}

// hangUp closes the connection, if there is one.
func (p *Poller) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nc != nil {
		p.nc.Close()
	}
	p.nc, p.raw = nil, nil
}

// exchange sends the request and reads its answer. The connection is kept when
// it is fit for another.
func (p *Poller) exchange(deadline time.Time) error {
	p.sent, p.fail = false, nil
	p.reply.begin(p.opts.MaxHeadBytes, p.most)
	if p.raw != nil {
		_ = p.nc.SetReadDeadline(deadline) // fails on a closed connection only, as the next line then does
		if err := p.raw.Read(p.step); err != nil {
			p.fail = err
		}
	} else {
		p.exchangePlainly(deadline)
	}
	if p.fail != nil || !p.reply.lasting() {
		p.hangUp()
	}
	return p.fail
}

// exchangePlainly is exchange over whatever is no socket.
func (p *Poller) exchangePlainly(deadline time.Time) {
	_ = p.nc.SetDeadline(deadline) // as in exchange
	if _, p.fail = p.nc.Write(p.request); p.fail != nil {
		return
	}
	p.sent = true
	for {
		n, err := p.nc.Read(p.reply.room())
		if p.took(n, err) {
			return
		}
	}
}

// took accounts for n bytes that were read behind the others, or for the error
// that came instead, and says whether the exchange is over.
func (p *Poller) took(n int, err error) (over bool) {
	if n == 0 && err == nil {
		return false
	}
	over, p.fail = p.reply.took(n, err)
	return over
}

// mayRepeat says whether a failed exchange is to be tried over a new connection:
// the old one was closed before anything of an answer came.
func (p *Poller) mayRepeat(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.aborted && !p.reply.begun && !errors.Is(err, os.ErrDeadlineExceeded)
}
