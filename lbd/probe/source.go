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

// source fetches a replica's pages.
type source interface {
	// get fetches a path by a deadline. The body is valid until release or the next get; a body that is
	// too long is returned as empty.
	get(ctx context.Context, path string, deadline time.Time) (status int, body []byte, err error)
	// release returns the memory of the last page.
	release()
	// abort makes a get in progress fail.
	abort()
	close()
}

// newSource returns the source of a replica, which keeps one connection. It does not follow
// redirects: an engine does not need to redirect its balancer, and only the replica itself may receive
// its key.
func newSource(cfg service.ReplicaConfig, opts Options) source {
	url := service.BaseURL(cfg.URL)
	if opts.Transport == nil && (cfg.MTLS || strings.HasPrefix(url, "http://")) {
		o := wire.Options{DialTimeout: dialTimeout, Allow: opts.Allow, Direct: cfg.MTLS, TLS: opts.TLS}
		p := wire.NewPoller(o, url, maxPage)
		if cfg.Key != "" {
			p.SetHeader("Authorization", cfg.Authorization())
		}
		return &pollerSource{p}
	}
	s := &transportSource{url: url, authorization: cfg.Authorization(), transport: opts.Transport, requests: map[string]*http.Request{}}
	if s.transport == nil {
		own := wire.NewTransport(wire.Options{DialTimeout: dialTimeout, MaxIdlePerHost: 1, IdleTimeout: idleTimeout, Allow: opts.Allow})
		s.transport, s.closeIdle = own, own.CloseIdleConnections
	}
	return s
}

// pollerSource has its own connection, only for probes.
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

// transportSource fetches pages with an http.RoundTripper.
type transportSource struct {
	url           string
	authorization string // empty = none
	transport     http.RoundTripper
	closeIdle     func()                   // nil if the caller owns the transport
	requests      map[string]*http.Request // by path
	page          []byte
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

// request returns the request for a path, created once.
func (s *transportSource) request(path string) (*http.Request, error) {
	if req := s.requests[path]; req != nil {
		return req, nil
	}
	req, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	if s.authorization != "" {
		req.Header.Set("Authorization", s.authorization)
	}
	s.requests[path] = req
	return req, nil
}

// readPage reads a body into reused memory.
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

// abort does nothing: contexts end requests in progress.
func (s *transportSource) abort() {}

func (s *transportSource) close() {
	if s.closeIdle != nil {
		s.closeIdle()
	}
}
