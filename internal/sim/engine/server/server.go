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
)

// ErrDied is what Run returns when a fault ended the server.
var ErrDied = errors.New("the engine died of a fault it was given")

// Server is a simulated engine behind HTTP. Make one with New, serve it with
// Run (or mount Handler), and Close it when it was not Run.
type Server struct {
	opts    Options
	models  map[string]adapter
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
}

// New starts an engine. Options that make no sense are an error.
func New(opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	d, err := newDriver(opts.Profile, opts.DataParallel, opts.Speed)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, models: adapters(opts), driver: d, started: time.Now(), dead: make(chan struct{})}
	s.stored.byID = map[string]*list.Element{}
	s.throughput = make([]throughput, opts.DataParallel)
	for rank := range s.throughput {
		s.throughput[rank].at = s.started
	}
	s.faults = newFaultState(opts.Seed, s.die, d.setPace)
	s.faults.set(opts.Faults)
	s.handler = s.routes()
	return s, nil
}

// Close ends the engine. Requests that are still running break off.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		s.faults.stop()
		s.driver.stop()
	})
}

// Handler is the server's HTTP interface.
func (s *Server) Handler() http.Handler { return s.handler }

// die ends the server as a crash would: at once and without a word.
func (s *Server) die() { s.dieOnce.Do(func() { close(s.dead) }) }

// Run serves on a listener until the context is done, then refuses new
// requests, lets those that run finish within the grace, closes everything and
// returns nil. It returns ErrDied when a fault ended it, or why serving
// failed. The server is closed afterwards.
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
		_ = web.Close() // as a crash does, whatever it says
		<-served
		return ErrDied
	case <-ctx.Done():
		s.shutDown(life, web)
		<-served
		return nil
	}
}

// shutDown stops serving within the grace.
func (s *Server) shutDown(life context.Context, web *http.Server) {
	s.draining.Store(true)
	grace, cancel := context.WithTimeout(life, s.opts.Grace)
	defer cancel()
	if web.Shutdown(grace) != nil {
		_ = web.Close() // what did not finish in time breaks off
	}
}

// routes is every path that the server answers.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, route := range []struct {
		method, path string
		serve        http.HandlerFunc
	}{
		{http.MethodPost, "/v1/chat/completions", s.serveChat},
		{http.MethodPost, "/v1/completions", s.serveCompletion},
		{http.MethodPost, "/v1/responses", s.serveResponse},
		{http.MethodPost, "/v1/embeddings", s.serveEmbeddings},
		{http.MethodPost, "/v1/rerank", s.serveRerank},
		{http.MethodPost, "/tokenize", s.serveTokenize},
		{http.MethodGet, "/v1/models", s.serveModels},
		{http.MethodGet, "/health", s.serveHealth},
		{http.MethodGet, "/healthz", s.serveHealth},
		{http.MethodGet, "/metrics", s.serveMetrics},
	} {
		mux.HandleFunc(route.path, s.gated(only(route.method, route.serve)))
	}
	s.routeStored(mux)
	// This one answers while the server hangs, to end the hanging.
	mux.HandleFunc("/fault", s.serveFault)
	mux.HandleFunc("/", s.gated(serveNotFound))
	return mux
}

// only refuses every method but one. HEAD goes with GET.
func only(method string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			(&problem{
				status: http.StatusMethodNotAllowed, kind: "invalid_request_error",
				message: fmt.Sprintf("%s: want method %s, got %s", r.URL.Path, method, r.Method),
			}).write(w)
			return
		}
		next(w, r)
	}
}

// gated holds requests back while the server hangs.
func (s *Server) gated(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.waitGate(r.Context())
		next(w, r)
	}
}

// waitGate waits while the server hangs. It panics with http.ErrAbortHandler,
// which closes the connection without an answer, when the client or the server
// is gone first.
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
	(&problem{status: http.StatusNotFound, kind: "invalid_request_error", message: "no such path: " + r.URL.Path}).write(w)
}

// serveHealth says whether new requests are taken.
func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if s.draining.Load() {
		errDraining.write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
}

var errDraining = &problem{
	status: http.StatusServiceUnavailable, kind: "server_error", code: "draining",
	message: "the engine is shutting down and takes no new requests",
}

// serveFault shows the faults in force (GET) or sets others instead (POST).
func (s *Server) serveFault(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
	case http.MethodPost:
		var f Faults
		if err := s.readBody(w, r, &f); err != nil {
			answer(w, err)
			return
		}
		s.faults.set(f)
	default:
		only(http.MethodPost, nil)(w, r)
		return
	}
	writeJSON(w, http.StatusOK, s.faults.current())
}

// answer writes an error, which is 400 unless it says otherwise.
func answer(w http.ResponseWriter, err error) {
	var p *problem
	if !errors.As(err, &p) {
		p = malformed("", err.Error())
	}
	p.write(w)
}
