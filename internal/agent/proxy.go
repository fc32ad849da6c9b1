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
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"skyserve/internal/identity"
)

// engineProxy is the proxy through which balancers use an engine on loopback.
type engineProxy struct {
	config       Proxy
	server       *http.Server
	reverseProxy *httputil.ReverseProxy
	inFlight     atomic.Int64
	draining     atomic.Bool
	ctx          context.Context // of the connections that were opened with CONNECT
	cancel       context.CancelFunc
}

// proxyIdleTimeout is longer than a balancer's idle timeout, so that no connection is closed while a
// request is being sent.
const proxyIdleTimeout = 3 * time.Minute

// setProxy starts the desired proxy, and keeps one whose configuration has not changed.
func (a *Agent) setProxy(config *Proxy) error {
	a.mu.Lock()
	old, draining := a.proxy, a.draining != ""
	a.mu.Unlock()
	if config != nil && old != nil && reflect.DeepEqual(old.config, *config) {
		return nil
	}
	a.closeProxy()
	if config == nil {
		return nil
	}
	f, err := a.newProxy(*config)
	if err != nil {
		return fmt.Errorf("starting the engine proxy on %s: %w", config.Listen, err)
	}
	f.draining.Store(draining)
	ln, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return fmt.Errorf("starting the engine proxy on %s: %w", config.Listen, err)
	}
	a.mu.Lock()
	a.proxy = f
	a.mu.Unlock()
	go func() {
		err := f.server.Serve(tls.NewListener(ln, a.proxyTLS()))
		if errors.Is(err, http.ErrServerClosed) {
			a.log.Info("engine proxy stopped", "listen", config.Listen)
			return
		}
		a.log.Error("serving the engine proxy failed", "listen", config.Listen, "err", err)
	}()
	return nil
}

// newProxy returns a proxy that does not listen yet.
func (a *Agent) newProxy(config Proxy) (*engineProxy, error) {
	to, err := url.Parse(config.Upstream)
	if err != nil {
		return nil, err
	}
	f := &engineProxy{config: config}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.reverseProxy = &httputil.ReverseProxy{
		// Without FlushInterval, it forwards each event of an event stream, and each part of a response without a length,
		// immediately, and other responses, such as pages of metrics, in one piece.
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
		ErrorLog:  slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: headerTimeout, IdleTimeout: proxyIdleTimeout, ErrorLog: f.reverseProxy.ErrorLog}
	return f, nil
}

// proxyTLS returns the TLS configuration for balancers. Each connection uses the certificate that is
// current when it is opened.
func (a *Agent) proxyTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return a.currentCredentials().Server(identity.Balancer), nil
	}}
}

// ServeHTTP forwards a request to the engine. While the machine drains it rejects all requests, so
// that a balancer's next probe fails.
func (f *engineProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		f.serveConnect(w, r)
		return
	}
	if f.draining.Load() {
		w.Header().Set("Connection", "close")
		writeError(w, http.StatusServiceUnavailable, errDraining)
		return
	}
	f.inFlight.Add(1)
	defer f.inFlight.Add(-1)
	// Without full duplex, the server closes the request body when the engine's response begins. The
	// transport may still be looking for the end of that body: it then fails, and closes the engine's
	// connection.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	f.reverseProxy.ServeHTTP(w, r)
}

// serveConnect connects a balancer to one of the configured addresses of this machine. Such a connection is
// not a request in flight: it carries cache events for as long as the engine publishes them, also while the
// machine drains.
func (f *engineProxy) serveConnect(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(f.config.ConnectTargets, r.Host) {
		writeError(w, http.StatusForbidden, fmt.Errorf("connecting to %s: not an address of the engine's cache events", r.Host))
		return
	}
	to, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		writeError(w, http.StatusBadGateway, err)
		return
	}
	acceptConnect(f.ctx, w, to)
}

var errDraining = errors.New("this machine is draining")

// closeProxy closes the proxy. Requests in flight complete, or are aborted after closeTimeout.
func (a *Agent) closeProxy() {
	a.mu.Lock()
	f := a.proxy
	a.proxy = nil
	a.mu.Unlock()
	if f == nil {
		return
	}
	f.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := f.server.Shutdown(ctx); err != nil {
		_ = f.server.Close() // aborts the remaining requests
	}
	f.reverseProxy.Transport.(*http.Transport).CloseIdleConnections()
}
