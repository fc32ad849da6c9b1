package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"skyserve/internal/identity"
)

// front lets balancers use an engine on loopback.
type front struct {
	config   Front
	server   *http.Server
	proxy    *httputil.ReverseProxy
	inFlight atomic.Int64
	draining atomic.Bool
}

// frontIdle outlasts how long a balancer keeps a connection that it does not use, so
// that none is closed while a request is on its way.
const frontIdle = 3 * time.Minute

// setFront makes the front what is wanted; the one that is there goes on if it is.
func (a *Agent) setFront(wanted *Front) error {
	a.mu.Lock()
	old, draining := a.front, a.draining != ""
	a.mu.Unlock()
	if wanted != nil && old != nil && old.config == *wanted {
		return nil
	}
	a.closeFront()
	if wanted == nil {
		return nil
	}
	f, err := a.newFront(*wanted)
	if err != nil {
		return fmt.Errorf("opening the front: %w", err)
	}
	f.draining.Store(draining)
	ln, err := net.Listen("tcp", wanted.Listen)
	if err != nil {
		return fmt.Errorf("opening the front: %w", err)
	}
	a.mu.Lock()
	a.front = f
	a.mu.Unlock()
	go func() {
		err := f.server.Serve(tls.NewListener(ln, a.frontConfig()))
		a.log.Info("the front is closed", "listen", wanted.Listen, "err", err)
	}()
	return nil
}

// newFront makes a front that does not listen yet.
func (a *Agent) newFront(config Front) (*front, error) {
	to, err := url.Parse(config.To)
	if err != nil {
		return nil, err
	}
	f := &front{config: config}
	f.proxy = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, // a token is due when it is there
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
		ErrorLog:      slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: headerTimeout, IdleTimeout: frontIdle, ErrorLog: f.proxy.ErrorLog}
	return f, nil
}

// frontConfig is TLS for balancers, with the certificate that is in force when one
// connects.
func (a *Agent) frontConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return a.enrolled().Server(identity.Balancer), nil
	}}
}

// ServeHTTP passes a request on, unless the machine drains: then a balancer learns from
// its next probe that there is nothing more to be had.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.draining.Load() {
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusServiceUnavailable, errDraining)
		return
	}
	f.inFlight.Add(1)
	defer f.inFlight.Add(-1)
	f.proxy.ServeHTTP(w, r)
}

var errDraining = errors.New("this machine takes nothing new")

// closeFront lets what is in flight finish for a while.
func (a *Agent) closeFront() {
	a.mu.Lock()
	f := a.front
	a.front = nil
	a.mu.Unlock()
	if f == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := f.server.Shutdown(ctx); err != nil {
		_ = f.server.Close() // what did not end in time breaks off
	}
	f.proxy.Transport.(*http.Transport).CloseIdleConnections()
}
