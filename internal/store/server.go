package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Limits of the embedded server, each with its reason.
const (
	// DefaultListen is where the embedded store of a local service answers.
	DefaultListen = "127.0.0.1:8301"
	// maxStoreBytes bounds the disk: state (256 MiB) and history (1.75 GiB) of
	// two services fit, and a small persistent disk (10 GB) does not fill.
	maxStoreBytes = 4 << 30
	// maxMemoryBytes bounds memory streams, of which this product makes none.
	maxMemoryBytes = 32 << 20
	// maxConnections is far above one connection a balancer.
	maxConnections = 1024
	// tlsTimeout bounds a handshake: three round trips half a world away, on a busy machine.
	tlsTimeout = 5 * time.Second
	// startTimeout bounds recovery of the streams on disk; a full history
	// recovers in seconds on a slow disk.
	startTimeout = 30 * time.Second
)

// Options configures an embedded store.
type Options struct {
	// Dir holds the data; it is made (0700) when missing and locked while the
	// server runs.
	Dir string
	// Listen is host:port; empty = DefaultListen, port 0 = any free port.
	Listen string
	// Token authenticates clients; empty is allowed on loopback only, and with TLS.
	Token string
	// TLS is spoken from the first byte where it is not nil, and decides by certificates
	// who may come.
	TLS *tls.Config
	// Logger receives the server's talk; nil = silence.
	Logger *slog.Logger
	// OnHealth is told when the store can no longer write, and with nil when it can
	// again; nil = nobody is. Calls never overlap.
	OnHealth func(*Problem)

	checkEvery time.Duration // 0 = checkEvery
}

// Server is an embedded store that runs until its context ends or Close.
type Server struct {
	opts Options
	host string
	port int
	url  string
	log  *slog.Logger
	lock *os.File
	end  context.CancelFunc
	done chan struct{} // closed once nothing of it runs any more

	mu      sync.Mutex
	problem *Problem // nil while it can write
}

// Serve starts an embedded store: JetStream on o.Dir, every write on disk
// before it is acknowledged. It returns once clients can connect. It fails with
// the place in the message when the port is taken, the directory is in use by
// another store, is not a directory or holds streams that cannot be read, and
// when it is asked to listen beyond loopback without a token or TLS. A disk that
// fills up later ends it for as long as there is no room: see Health.
func Serve(ctx context.Context, o Options) (*Server, error) {
	if o.Listen == "" {
		o.Listen = DefaultListen
	}
	o.checkEvery = cmp.Or(o.checkEvery, checkEvery)
	host, port, err := checkListen(o.Listen, o.Token != "" || o.TLS != nil)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	ns, err := startNATS(ctx, o, host, port)
	if err != nil {
		lock.Close()
		return nil, err
	}
	if addr, ok := ns.Addr().(*net.TCPAddr); ok {
		port = addr.Port // clients come back to the same one
	}
	s := &Server{opts: o, host: host, port: port, url: ns.ClientURL(), lock: lock, log: o.Logger, done: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	ctx, s.end = context.WithCancel(ctx)
	go s.supervise(ctx, ns)
	return s, nil
}

// URL is what clients pass to Connect.
func (s *Server) URL() string { return s.url }

// Close stops the server and frees the directory; it returns when both are done.
// Calling it again does nothing.
func (s *Server) Close() {
	s.end()
	<-s.done
}

// checkListen splits the address and refuses one that would expose an
// unauthenticated store.
func checkListen(listen string, guarded bool) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("starting store: listen %q: want host:port: %w", listen, err)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("starting store: listen %q: port must be 0 to 65535, got %q", listen, p)
	}
	if !guarded && !isLoopback(host) {
		return "", 0, fmt.Errorf("starting store: listen %q: a store that listens beyond loopback needs a token or TLS", listen)
	}
	return host, port, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// lockDir makes dir and takes it for this process.
func lockDir(dir string) (*os.File, error) {
	if dir == "" {
		return nil, errors.New("starting store: no directory given")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("starting store: making directory %s: %w", dir, err)
	}
	lock, err := lockFile(filepath.Join(dir, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("starting store: locking %s: is another store using it? %w", dir, err)
	}
	return lock, nil
}

// startNATS runs the server and waits until it answers.
func startNATS(ctx context.Context, o Options, host string, port int) (*server.Server, error) {
	if err := probePort(host, port); err != nil {
		return nil, err
	}
	before := streamsOnDisk(o.Dir)
	ns, err := server.NewServer(natsOptions(o, host, port))
	if err != nil {
		return nil, fmt.Errorf("starting store in %s: %w", o.Dir, err)
	}
	log := newLogger(o.Logger)
	ns.SetLogger(log, false, false)
	ns.Start()
	if err := waitReady(ctx, ns, log); err != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, fmt.Errorf("starting store on %s in %s: %w", o.Listen, o.Dir, err)
	}
	if err := checkRecovered(ns, before); err != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, fmt.Errorf("starting store in %s: %w", o.Dir, err)
	}
	return ns, nil
}

func natsOptions(o Options, host string, port int) *server.Options {
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return &server.Options{
		ServerName: "skyserve-store", Host: host, Port: port, Authorization: o.Token,
		TLSConfig: o.TLS, TLSHandshakeFirst: o.TLS != nil, TLSTimeout: tlsTimeout.Seconds(),
		NoSigs: true, DisableJetStreamBanner: true, MaxConn: maxConnections,
		JetStream: true, StoreDir: o.Dir, SyncAlways: true,
		Cluster:           server.ClusterOpts{NoAdvertise: true}, // its own address may be one behind a translation
		JetStreamMaxStore: maxStoreBytes, JetStreamMaxMemory: maxMemoryBytes,
	}
}

// probePort reports a taken port in words before the server dies of it.
func probePort(host string, port int) error {
	if port == 0 {
		return nil
	}
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("starting store: listening on %s: %w", addr, err)
	}
	return l.Close()
}

// waitReady polls in short turns so that a fatal word or an ended context is
// noticed at once.
func waitReady(ctx context.Context, ns *server.Server, log *logger) error {
	deadline := time.Now().Add(startTimeout)
	for {
		if ns.ReadyForConnections(100 * time.Millisecond) {
			return nil
		}
		if err := log.firstFatal(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %s", startTimeout)
		}
	}
}

// streamsOnDisk lists the streams that an earlier run left in dir.
func streamsOnDisk(dir string) []string {
	streams := filepath.Join(dir, "jetstream", server.DEFAULT_GLOBAL_ACCOUNT, "streams")
	entries, err := os.ReadDir(streams)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && wasMade(filepath.Join(streams, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names
}

// wasMade says whether a directory of a stream holds its description or anything that was
// stored. A process that ended while it made the stream leaves neither.
func wasMade(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, server.JetStreamMetaFile)); !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	blocks, err := os.ReadDir(filepath.Join(dir, "msgs"))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(blocks, func(e fs.DirEntry) bool {
		info, err := e.Info()
		return err != nil || info.Size() > 0
	})
}

// checkRecovered fails when a stream that is on disk is not served: the server
// skips what it cannot read with a warning, and an empty store in the place of
// a damaged one would look like a service that never existed.
func checkRecovered(ns *server.Server, want []string) error {
	info, err := ns.Jsz(&server.JSzOptions{Accounts: true, Streams: true})
	if err != nil {
		return fmt.Errorf("reading its streams: %w", err)
	}
	have := map[string]bool{}
	for _, acc := range info.AccountDetails {
		for _, s := range acc.Streams {
			have[s.Name] = true
		}
	}
	for _, name := range want {
		if !have[name] {
			return fmt.Errorf("stream %s is damaged and was not recovered; restore the directory from a backup or move it away", name)
		}
	}
	return nil
}
