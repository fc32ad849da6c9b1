package probe

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/wire"
)

// source is where a replica's pages come from.
type source interface {
	// get fetches a path by a deadline. The body is valid until release or the
	// next get; one that is too long comes back empty.
	get(ctx context.Context, path string, deadline time.Time) (status int, body []byte, err error)
	// release gives the memory of the last page back.
	release()
	// abort makes a get that is under way fail.
	abort()
	close()
}

// newSource keeps a connection to a replica. Redirects are not followed: an engine
// has no reason to send its balancer elsewhere.
func newSource(cfg service.ReplicaConfig, opts Options) source {
	url := strings.TrimRight(cfg.URL, "/")
	if opts.Transport == nil && (cfg.MTLS || strings.HasPrefix(url, "http://")) {
		o := wire.Options{DialTimeout: dialTimeout, Allow: opts.Allow, Direct: cfg.MTLS, TLS: opts.TLS}
		return &pollerSource{wire.NewPoller(o, url, maxPage)}
	}
	s := &transportSource{url: url, transport: opts.Transport, requests: map[string]*http.Request{}}
	if s.transport == nil {
		own := wire.NewTransport(wire.Options{DialTimeout: dialTimeout, MaxIdlePerHost: 1, IdleTimeout: idleTimeout, Allow: opts.Allow})
		s.transport, s.closeIdle = own, own.CloseIdleConnections
	}
	return s
}

// pollerSource is a connection that carries nothing else.
type pollerSource struct{ poller *wire.Poller }

func (s *pollerSource) get(ctx context.Context, path string, deadline time.Time) (status int, body []byte, err error) {
	status, body, err = s.poller.Get(ctx, path, deadline)
	if errors.Is(err, wire.ErrTooLong) {
		return status, nil, nil
	}
	return status, body, err
}

func (s *pollerSource) release() { s.poller.Release() }
func (s *pollerSource) abort()   { s.poller.Abort() }
func (s *pollerSource) close()   { s.poller.Close() }

// transportSource is pages by way of an http.RoundTripper.
type transportSource struct {
	url       string
	transport http.RoundTripper
	closeIdle func()                   // nil where the transport is somebody else's
	requests  map[string]*http.Request // by path
	page      []byte
}

func (s *transportSource) get(ctx context.Context, path string, deadline time.Time) (status int, body []byte, err error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	req, err := s.request(path)
	if err != nil {
		return 0, nil, err
	}
	res, err := s.transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	if err := s.readPage(res); err != nil {
		return 0, nil, err
	}
	return res.StatusCode, s.page, nil
}

// request is the request for a path, made once.
func (s *transportSource) request(path string) (*http.Request, error) {
	if req := s.requests[path]; req != nil {
		return req, nil
	}
	req, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	s.requests[path] = req
	return req, nil
}

// readPage reads a body into memory that is kept.
func (s *transportSource) readPage(res *http.Response) error {
	s.page = s.page[:0]
	for {
		if len(s.page) == cap(s.page) {
			s.page = append(s.page, 0)[:len(s.page)]
		}
		n, err := res.Body.Read(s.page[len(s.page):cap(s.page)])
		s.page = s.page[:len(s.page)+n]
		switch {
		case len(s.page) > maxPage:
			s.page = nil
			return nil
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

func (s *transportSource) release() {}

// abort has nothing to do: contexts end what is under way.
func (s *transportSource) abort() {}

func (s *transportSource) close() {
	if s.closeIdle != nil {
		s.closeIdle()
	}
}
