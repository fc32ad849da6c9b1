package server

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/sim/engine"
)

// ErrDied is returned by Run when a fault stopped the server.
var ErrDied = errors.New("the engine was stopped by an injected fault")

// Server is a simulated engine behind HTTP. Create it with New, serve it with Run (or mount Handler),
// and Close it if it was not Run.
type Server struct {
	opts    Options
	served  *served
	driver  *driver
	faults  *faultState
	stored  stored
	handler http.Handler
	started time.Time

	draining   atomic.Bool
	dead       chan struct{}
	dieOnce    sync.Once
	closeOnce  sync.Once
	throughput []throughput // by rank

	cachePublishers []*cachePublisher // by rank; none = cache events are not published
	stopCacheEvents func()
	cacheEvents     sync.WaitGroup // of the publishers
}

// New starts an engine. It returns an error for invalid options; it has closed opts.CacheEvents then.
func New(opts Options) (s *Server, err error) {
	defer func() {
		if err != nil {
			closeCacheListeners(opts.CacheEvents)
		}
	}()
	if opts, err = opts.withDefaults(); err != nil {
		return nil, err
	}
	s = &Server{opts: opts, served: newServed(opts), started: time.Now(), dead: make(chan struct{}), stopCacheEvents: func() {}}
	var cacheChanged func(rank int, changes []engine.CacheChange)
	if len(opts.CacheEvents) > 0 {
		ctx, stop := context.WithCancel(context.Background())
		s.cachePublishers = startCacheEvents(ctx, opts.CacheEvents, opts.Flavor, &s.cacheEvents)
		s.stopCacheEvents = stop
		cacheChanged = func(rank int, changes []engine.CacheChange) { s.cachePublishers[rank].publish(time.Now(), changes) }
	}
	if s.driver, err = newDriver(opts.Profile, opts.DataParallel, opts.Speed, cacheChanged); err != nil {
		s.stopCacheEvents()
		return nil, err
	}
	s.stored.byID = map[string]*list.Element{}
	s.throughput = make([]throughput, opts.DataParallel)
	for rank := range s.throughput {
		s.throughput[rank].at = s.started
	}
	s.faults = newFaultState(opts.Seed, s.die, s.driver.setPace)
	s.faults.replaceFaults(opts.Faults)
	s.handler = s.keyed(s.routes())
	return s, nil
}

// Close stops the engine. It aborts running requests.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		s.faults.stop()
		s.driver.stop()
		s.stopCacheEvents()
		s.cacheEvents.Wait()
	})
}

// Handler returns the server's HTTP handler.
func (s *Server) Handler() http.Handler { return s.handler }

// die stops the server like a crash, without shutdown.
func (s *Server) die() { s.dieOnce.Do(func() { close(s.dead) }) }

// Run serves on a listener until ctx ends, then rejects new requests, lets running ones finish within
// the grace period, closes the server and returns nil. It returns ErrDied when a fault stopped the
// server, or the error of serving.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	defer s.Close()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	web := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return life },
	}
	var broke error
	served := make(chan struct{})
	go func() {
		defer close(served)
		broke = web.Serve(listener)
	}()
	select {
	case <-served:
		return fmt.Errorf("serving %s: %w", listener.Addr(), broke)
	case <-s.dead:
		_ = web.Close() // like a crash; the error does not matter
		<-served
		return ErrDied
	case <-ctx.Done():
		s.shutDown(life, web)
		<-served
		return nil
	}
}

// shutDown stops serving within the grace period.
func (s *Server) shutDown(life context.Context, web *http.Server) {
	s.draining.Store(true)
	grace, cancel := context.WithTimeout(life, s.opts.Grace)
	defer cancel()
	if web.Shutdown(grace) != nil {
		_ = web.Close() // aborts requests that did not finish in time
	}
}

// routes returns the handler of all paths.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, route := range []struct {
		method, path string
		serve        http.HandlerFunc
	}{
		{http.MethodPost, "/v1/chat/completions", s.serveChat},
		{http.MethodPost, "/v1/completions", s.serveCompletion},
		{http.MethodPost, "/v1/responses", s.serveResponse},
		{http.MethodPost, "/v1/messages", s.serveMessages},
		{http.MethodPost, "/v1/messages/count_tokens", s.serveCountTokens},
		{http.MethodPost, "/v1/embeddings", s.serveEmbeddings},
		{http.MethodPost, "/rerank", s.serveRerank},
		{http.MethodPost, "/v1/rerank", s.serveRerank},
		{http.MethodPost, "/v2/rerank", s.serveRerank},
		{http.MethodPost, "/score", s.serveScore},
		{http.MethodPost, "/v1/score", s.serveScore},
		{http.MethodPost, "/tokenize", s.serveTokenize},
		{http.MethodPost, "/v1/chat/completions/render", s.serveRender(false)},
		{http.MethodPost, "/v1/completions/render", s.serveRender(true)},
		{http.MethodPost, "/v1/audio/transcriptions", s.serveTranscription},
		{http.MethodPost, "/v1/audio/translations", s.serveTranscription},
		{http.MethodPost, "/v1/audio/speech", s.serveSpeech},
		{http.MethodGet, "/v1/realtime", s.serveRealtime},
		{http.MethodGet, "/v1/models", s.serveModels},
		{http.MethodPost, "/v1/load_lora_adapter", s.serveLoadAdapter},
		{http.MethodPost, "/v1/unload_lora_adapter", s.serveUnloadAdapter},
		{http.MethodGet, "/health", s.serveHealth},
		{http.MethodGet, "/healthz", s.serveHealth},
		{http.MethodGet, "/ping", s.serveHealth},
		{http.MethodGet, "/version", serveVersion},
		{http.MethodGet, "/metrics", s.serveMetrics},
		{http.MethodGet, "/v1/loads", s.serveLoads},
	} {
		mux.HandleFunc(route.path, s.gated(only(route.method, route.serve)))
	}
	s.routeStored(mux)
	// /fault is not gated, so that it can end a hang.
	mux.HandleFunc("/fault", s.serveFault)
	mux.HandleFunc("/", s.gated(serveNotFound))
	return mux
}

// only rejects all methods but one. GET includes HEAD.
func only(method string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			(&problem{
				status: http.StatusMethodNotAllowed, kind: "invalid_request_error",
				message: fmt.Sprintf("%s: method must be %s, got %s", r.URL.Path, method, r.Method),
			}).writeError(w)
			return
		}
		next(w, r)
	}
}

// gated blocks requests while the server hangs.
func (s *Server) gated(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.waitGate(r.Context())
		next(w, r)
	}
}

// waitGate waits while the server hangs. If the client disconnects or the server stops first, it panics
// with http.ErrAbortHandler, which closes the connection without a response.
func (s *Server) waitGate(ctx context.Context) {
	gate := s.faults.gate()
	if gate == nil {
		return
	}
	select {
	case <-gate:
	case <-ctx.Done():
		panic(http.ErrAbortHandler)
	case <-s.driver.done:
		panic(http.ErrAbortHandler)
	}
}

func serveNotFound(w http.ResponseWriter, r *http.Request) {
	(&problem{status: http.StatusNotFound, kind: "invalid_request_error", message: "no such path: " + r.URL.Path}).writeError(w)
}

// serveHealth reports whether the server accepts new requests.
func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if s.draining.Load() {
		errDraining.writeError(w)
		return
	}
	w.WriteHeader(http.StatusOK)
}

var errDraining = &problem{
	status: http.StatusServiceUnavailable, kind: "server_error", code: "draining",
	message: "the engine is shutting down and accepts no new requests",
}

// serveFault returns the current faults (GET) or replaces them (POST).
func (s *Server) serveFault(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
	case http.MethodPost:
		var f Faults
		if err := s.readBody(w, r, &f); err != nil {
			writeError(w, err)
			return
		}
		s.faults.replaceFaults(f)
	default:
		only(http.MethodPost, nil)(w, r)
		return
	}
	writeJSON(w, http.StatusOK, s.faults.current())
}

// writeError sends an error, with status 400 unless it is a problem.
func writeError(w http.ResponseWriter, err error) {
	var p *problem
	if !errors.As(err, &p) {
		p = malformed("", err.Error())
	}
	p.writeError(w)
}
