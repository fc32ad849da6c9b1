package discover

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
)

const (
	fileInterval = 200 * time.Millisecond // a change takes effect within a second, after two looks at the same file
	nameInterval = 5 * time.Second        // net.Resolver reports no TTL; headless services of orchestrators use 5 s to 30 s
)

// Options configure a Discovery. CheckURL and Apply are required.
type Options struct {
	// CheckURL validates the URL of a replica, unless IsName reports that it is a DNS name of several replicas.
	CheckURL func(url string) error
	// Apply is called with the replicas of an origin when they change: the complete list. After an origin
	// is removed, it is called with none. It is called from one goroutine at a time per origin.
	Apply func(origin string, replicas []service.ReplicaConfig)
	// Resolver resolves DNS names; nil = the system's.
	Resolver Resolver
	// FileInterval is the time between two looks at a file, default 200 ms; NameInterval the time between
	// two lookups of a name, default 5 s.
	FileInterval, NameInterval time.Duration
	// Logger receives problems and their ends; nil = no logs.
	Logger *slog.Logger
}

// Problem is a source that cannot be read now. Its last list stays in effect.
type Problem struct {
	// Origin is the source, as passed to Apply.
	Origin string
	// Message describes the problem, NextStep what an operator should do.
	Message, NextStep string
	// Since is the time of the first failure since the last success.
	Since time.Time
}

// Discovery watches a changing set of sources. All methods may be called from many goroutines, but
// SetSources and Close not at the same time.
type Discovery struct {
	opts   Options
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	watches map[string]*watch // by origin, of the file and of the names in the configuration
}

// source lists replicas.
type source interface {
	// origin names the source, uniquely.
	origin() string
	// settings are those that its replicas inherit.
	settings() service.ReplicaConfig
	// list returns the replicas. changed is false if they are the same as in the last call, or not
	// known yet; it is true with an error.
	list(ctx context.Context) (replicas []service.ReplicaConfig, changed bool, err error)
	// problem describes an error of list; have is the size of the list in effect.
	problem(err error, have int) (message, nextStep string)
}

// watch follows one source.
type watch struct {
	discovery *Discovery
	source    source
	interval  time.Duration
	stop      context.CancelFunc
	done      chan struct{}
	have      int               // the number of replicas in the last list
	names     map[string]*watch // of the DNS names in the last list of a file, by origin

	mu      sync.Mutex
	current *Problem
}

// New returns a Discovery without sources. Close it after use.
func New(opts Options) *Discovery {
	opts.FileInterval, opts.NameInterval = cmp.Or(opts.FileInterval, fileInterval), cmp.Or(opts.NameInterval, nameInterval)
	if opts.Resolver == nil {
		opts.Resolver = net.DefaultResolver
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Discovery{opts: opts, watches: map[string]*watch{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// SetSources replaces the sources: a file of replicas, empty = none, and replicas whose URLs are DNS names.
// Sources that remain are not interrupted.
func (d *Discovery) SetSources(file string, names []service.ReplicaConfig) {
	var sources []source
	if file != "" {
		sources = append(sources, &fileSource{path: file, check: d.opts.CheckURL})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replaceWatches(d.watches, append(sources, d.nameSources(names, "")...))
}

// nameSources returns the sources of DNS names. Their URLs are valid. listedBy is the start of their origins:
// a file and the configuration may list the same name.
func (d *Discovery) nameSources(names []service.ReplicaConfig, listedBy string) (sources []source) {
	for _, template := range names {
		s, err := newNameSource(template, d.opts.Resolver)
		if err != nil {
			d.opts.Logger.Error("discovering replicas failed", "url", template.URL, "err", err)
			continue
		}
		s.listedBy = listedBy
		sources = append(sources, s)
	}
	return sources
}

// replaceWatches stops the watches without a source in the list, and starts those that are missing. A source
// with other settings is watched anew; until its first list, its replicas stay as they are.
func (d *Discovery) replaceWatches(watches map[string]*watch, sources []source) {
	for origin, w := range watches {
		if !slices.ContainsFunc(sources, func(s source) bool { return s.origin() == origin }) {
			w.end()
			delete(watches, origin)
		}
	}
	for _, s := range sources {
		w, have := watches[s.origin()], 0
		if w != nil && w.source.settings() == s.settings() {
			continue
		}
		if w != nil {
			w.stopAndWait()
			have = w.have
		}
		watches[s.origin()] = d.start(s, have)
	}
}

// start follows a source; have is the size of the list in effect.
func (d *Discovery) start(s source, have int) *watch {
	w := &watch{discovery: d, source: s, interval: d.opts.NameInterval, done: make(chan struct{}), have: have, names: map[string]*watch{}}
	if _, isFile := s.(*fileSource); isFile {
		w.interval = d.opts.FileInterval
	}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(d.ctx)
	go w.run(ctx)
	return w
}

// end stops a watch and removes its replicas.
func (w *watch) end() {
	w.stopAndWait()
	for _, inner := range w.names {
		inner.end()
	}
	w.discovery.opts.Apply(w.source.origin(), nil)
}

// stopAndWait stops a watch. Its replicas stay.
func (w *watch) stopAndWait() {
	w.stop()
	<-w.done
}

// run lists the source at each interval until ctx ends.
func (w *watch) run(ctx context.Context) {
	defer close(w.done)
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look lists the source once.
func (w *watch) look(ctx context.Context) {
	replicas, changed, err := w.source.list(ctx)
	switch {
	case ctx.Err() != nil || !changed:
		return
	case err != nil:
		w.setProblem(err)
		return
	}
	w.clearProblem()
	w.have = len(replicas)
	static, names := Split(replicas)
	w.mu.Lock()
	w.discovery.replaceWatches(w.names, w.discovery.nameSources(names, w.source.origin()+": "))
	w.mu.Unlock()
	w.discovery.opts.Apply(w.source.origin(), static)
}

// Split separates the replicas whose URLs are DNS names.
func Split(replicas []service.ReplicaConfig) (static, names []service.ReplicaConfig) {
	for _, r := range replicas {
		if IsName(r.URL) {
			names = append(names, r)
		} else {
			static = append(static, r)
		}
	}
	return static, names
}

// setProblem records and logs an error.
func (w *watch) setProblem(err error) {
	message, next := w.source.problem(err, w.have)
	w.mu.Lock()
	defer w.mu.Unlock()
	since := time.Now()
	if w.current != nil {
		since = w.current.Since
	}
	if w.current == nil || w.current.Message != message {
		w.discovery.opts.Logger.Warn("discovering replicas failed", "origin", w.source.origin(), "problem", message)
	}
	w.current = &Problem{Origin: w.source.origin(), Message: message, NextStep: next, Since: since}
}

// clearProblem ends a problem.
func (w *watch) clearProblem() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != nil {
		w.discovery.opts.Logger.Info("discovering replicas succeeded", "origin", w.source.origin())
	}
	w.current = nil
}

// Problems returns the current problems, sorted by origin.
func (d *Discovery) Problems() []Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Problem
	for _, w := range d.watches {
		all = w.appendProblems(all)
	}
	slices.SortFunc(all, func(a, b Problem) int { return cmp.Compare(a.Origin, b.Origin) })
	return all
}

func (w *watch) appendProblems(all []Problem) []Problem {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != nil {
		all = append(all, *w.current)
	}
	for _, inner := range w.names {
		all = inner.appendProblems(all)
	}
	return all
}

// Close stops all watches; the replicas stay.
func (d *Discovery) Close() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.watches {
		<-w.done
		for _, inner := range w.names {
			<-inner.done
		}
	}
}
