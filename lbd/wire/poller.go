package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrTooLong means that a response is longer than its reader accepts.
var ErrTooLong = errors.New("the response is too long")

// errStale means that a connection was closed, or received bytes, while it was idle.
var errStale = errors.New("the connection was closed while it was idle")

// Poller fetches small documents repeatedly from one host, by GET, on one connection that it keeps
// open. It has the same rules for responses as Transport, but costs less. The bytes of the request
// are built once. Memory for the response is in use only from its first byte to Release. A head that
// equals the last one is not parsed again. A Get allocates nothing unless the request or the head
// changed. A Poller belongs to one goroutine; only Abort may be called from others.
type Poller struct {
	opts    Options
	base    string // URL of the host, without a trailing slash
	maxBody int    // maximum bytes of a body
	header  http.Header

	url     string // the URL of request
	request []byte // as sent
	addr    string

	mu      sync.Mutex
	nc      net.Conn // nil while disconnected; changed by the owner only
	aborted bool

	raw         syscall.RawConn       // of nc; nil if its readiness cannot be checked
	stepFunc    func(fd uintptr) bool // the method value of stepWhenReady, allocated once
	sent        bool                  // the request of the current exchange was sent
	exchangeErr error                 // error of the current exchange
	reply       reply
}

// NewPoller returns a poller of the host at an http URL, or an https URL if Options.Direct is set. The
// URL's path, if any, precedes all requested paths. A body of more than limit bytes is rejected. The
// other options that apply are those of the dialer, TLS and MaxHeadBytes.
func NewPoller(o Options, base string, limit int) *Poller {
	p := &Poller{opts: o.orDefault(), base: strings.TrimRight(base, "/"), maxBody: limit}
	p.stepFunc = p.stepWhenReady
	return p
}

// SetHeader sets the value of a header of all requests. It must be called before the first Get.
func (p *Poller) SetHeader(name, value string) {
	if p.header == nil {
		p.header = http.Header{}
	}
	p.header.Set(name, value)
}

// Get requests a path and returns the response. Its body is valid until Release or the next Get. It
// waits at most until the deadline. If ctx ends before there is a connection, it returns the cause of
// ctx. For a response that is not HTTP/1.1 it returns ErrMalformed, for a body over the limit
// ErrTooLong with the status. If the host does not respond in time, it returns a net.Error whose
// Timeout is true. If the connection was closed while idle, Get replaces it once.
func (p *Poller) Get(ctx context.Context, path string, deadline time.Time) (status int, body []byte, err error) {
	p.Release()
	if err := p.prepareRequest(path); err != nil {
		return 0, nil, err
	}
	if p.nc != nil {
		if err = p.exchange(deadline); err != nil && !p.mayRetry(err) {
			return p.reply.status(), nil, fmt.Errorf("sending a request to %s: %w", p.addr, err)
		}
	}
	if p.nc == nil {
		if err := p.dial(ctx, deadline); err != nil {
			return 0, nil, err
		}
		if err := p.exchange(deadline); err != nil {
			return p.reply.status(), nil, fmt.Errorf("sending a request to %s: %w", p.addr, err)
		}
	}
	return p.reply.status(), p.reply.content(), nil
}

// Release returns the memory of the last response.
func (p *Poller) Release() { p.reply.release() }

// Abort makes the current Get and every later one fail.
func (p *Poller) Abort() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aborted = true
	if p.nc != nil {
		p.nc.Close()
	}
}

// Close closes the connection. The next Get opens a new one.
func (p *Poller) Close() {
	p.Release()
	p.hangUp()
}

// prepareRequest builds the request for a path, unless the last request had the same path.
func (p *Poller) prepareRequest(path string) error {
	if len(p.url) == len(p.base)+len(path) && strings.HasSuffix(p.url, path) {
		return nil
	}
	url := p.base + path
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, p.header)
	out, err := prepareRequest(req, p.opts.scheme())
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
		return fmt.Errorf("connecting to %s: %w", p.addr, err)
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

// exchange sends the request and reads the response. It keeps the connection if it can be reused.
func (p *Poller) exchange(deadline time.Time) error {
	p.sent, p.exchangeErr = false, nil
	p.reply.reset(p.opts.MaxHeadBytes, p.maxBody)
	if p.raw != nil {
		_ = p.nc.SetReadDeadline(deadline) // it fails only on a closed connection; the next line then fails too
		if err := p.raw.Read(p.stepFunc); err != nil {
			p.exchangeErr = err
		}
	} else {
		p.exchangeBlocking(deadline)
	}
	if p.exchangeErr != nil || !p.reply.reusable() {
		p.hangUp()
	}
	return p.exchangeErr
}

// exchangeBlocking is exchange over a connection that is not a socket.
func (p *Poller) exchangeBlocking(deadline time.Time) {
	_ = p.nc.SetDeadline(deadline) // as in exchange
	if _, p.exchangeErr = p.nc.Write(p.request); p.exchangeErr != nil {
		return
	}
	p.sent = true
	for {
		n, err := p.nc.Read(p.reply.freeSpace())
		if p.recordRead(n, err) {
			return
		}
	}
}

// recordRead records that n bytes were read, or the error of the read, and reports whether the
// exchange is complete.
func (p *Poller) recordRead(n int, err error) (done bool) {
	if n == 0 && err == nil {
		return false
	}
	done, p.exchangeErr = p.reply.recordRead(n, err)
	return done
}

// mayRetry reports whether to retry a failed exchange on a new connection: the old one was closed
// before any byte of the response arrived.
func (p *Poller) mayRetry(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.aborted && !p.reply.started && !errors.Is(err, os.ErrDeadlineExceeded)
}
