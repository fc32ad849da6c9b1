package store

import (
	"cmp"
	"context"
	"crypto/rand"
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
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Limits of the embedded server, each with its reason.
const (
	// DefaultListen is the address of the embedded store of a local service.
	DefaultListen = "127.0.0.1:8301"
	// maxStoreBytes limits disk usage: enough for state (256 MiB), history (1.7 GiB), events (64 MiB) and
	// batches of two services.
	maxStoreBytes = 4<<30 + 2*(recordsMaxBytes+resultsMaxBytes+objectsMaxBytes)
	// maxMemoryBytes limits streams in memory, which this package does not create.
	maxMemoryBytes = 32 << 20
	// maxConnections is far above one connection per balancer.
	maxConnections = 1024
	// tlsTimeout is the handshake timeout: three round trips half a world away, on a busy
	// machine.
	tlsTimeout = 5 * time.Second
	// startTimeout is the timeout of recovering the streams on disk; a full history takes
	// seconds on a slow disk.
	startTimeout = 30 * time.Second
)

// Options configures an embedded store.
type Options struct {
	// Dir is the data directory. It is created (mode 0700) if missing, and locked while the
	// server runs.
	Dir string
	// Listen is host:port; empty = DefaultListen, port 0 = any free port.
	Listen string
	// Token authenticates clients. It may be empty only if Listen is a loopback address or TLS is set.
	Token string
	// TLS, if not nil, is used from the first byte. Without a Token it must require and verify the certificates of
	// clients (ClientAuth).
	TLS *tls.Config
	// Cluster makes the store a member of a cluster; nil = a single store.
	Cluster *Cluster
	// Logger receives the server's logs; nil discards them.
	Logger *slog.Logger
	// OnOutage, if not nil, is called with the problem when the store can no longer write or its disk is nearly full,
	// and with nil when that has ended. Calls never overlap.
	OnOutage func(*Outage)

	// Tests set these; 0 = the constant of the same name.
	checkEvery, maintainEvery, removeAfter, takeTimeout time.Duration

	secret string // the password of the server's connections to itself
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
	done chan struct{} // closed once everything has stopped

	changing sync.Mutex // held while the server restarts or its members change

	member    member // not used without a cluster
	detaching atomic.Bool

	movedMu       sync.Mutex
	movedMessages int  // see maintainer.movedMessages
	dataMoved     bool // member.DataMoved in the directory; false at first, because Serve removes moved data

	mu         sync.Mutex
	outage     *Outage     // why it cannot write, or that its disk is nearly full; nil otherwise
	maintainer *maintainer // nil without a cluster, and while the server is stopped
	cluster    ClusterStatus
	leaderless time.Time // since when the cluster has had no leader; zero = it has one
}

// Serve starts an embedded store: JetStream in o.Dir, which syncs each write to disk before it
// acknowledges it. It returns once clients can connect. It fails if the port is in use, or if o.Dir is in
// use by another store, is not a directory, or was written by a later version.
// It also fails if o.Listen is not a loopback address and there is neither a token nor TLS. If the disk becomes full
// later, the store cannot write until space is free again: see Server.Outage.
//
// Without o.Cluster, Serve fails if o.Dir contains damaged streams, or belongs to a member that was not detached.
//
// With o.Cluster, Serve returns before the cluster has a majority: see Server.Cluster. The other members repair damaged
// streams. The data of a single store in o.Dir is restored into the cluster, unless the cluster already has data. Serve
// fails if o.Dir belongs to another cluster or node.
//
// If another member has taken over the data of the cluster (Server.Detach), Serve deletes the outdated data in o.Dir.
func Serve(ctx context.Context, o Options) (*Server, error) {
	if o.Listen == "" {
		o.Listen = DefaultListen
	}
	o.checkEvery, o.maintainEvery = cmp.Or(o.checkEvery, checkEvery), cmp.Or(o.maintainEvery, maintainEvery)
	o.removeAfter, o.takeTimeout = cmp.Or(o.removeAfter, removeAfter), cmp.Or(o.takeTimeout, takeTimeout)
	o.secret = rand.Text()
	if err := o.Cluster.validate(); err != nil {
		return nil, fmt.Errorf("starting store: %w", err)
	}
	host, port, err := checkListen(o.Listen, o.Token != "" || o.TLS != nil)
	if err != nil {
		return nil, fmt.Errorf("starting store: %w", err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("starting store: %w", err)
	}
	if err := openFormat(o.Dir); err != nil {
		lock.Close()
		return nil, err
	}
	m, ns, err := startStore(ctx, o, host, port)
	if err != nil {
		lock.Close()
		return nil, err
	}
	if addr, ok := ns.Addr().(*net.TCPAddr); ok {
		port = addr.Port // after a restart, clients reconnect to the same port
	}
	s := &Server{member: m, opts: o, host: host, port: port, url: ns.ClientURL(), lock: lock, log: o.Logger, done: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	ctx, s.end = context.WithCancel(ctx)
	if err := s.startMaintainer(ctx, ns, map[string]time.Time{}); err != nil {
		s.end()
		stopNATS(ns)
		lock.Close()
		return nil, fmt.Errorf("starting store in %s: %w", o.Dir, err)
	}
	go s.supervise(ctx, ns)
	return s, nil
}

// startStore starts the server of a single store or of a member.
func startStore(ctx context.Context, o Options, host string, port int) (m member, ns *runningNATS, err error) {
	if m, err = openMember(o.Dir, o.Cluster); err == nil {
		err = removeMovedData(o.Dir)
	}
	if err != nil {
		return m, nil, err
	}
	if o.Cluster == nil {
		ns, err = startNATS(ctx, o, member{}, host, port)
		if err == nil && m.Detached {
			// It is no longer a member: from now on it has writes that the other members lack.
			if err = os.Remove(filepath.Join(o.Dir, memberFile)); err != nil {
				stopNATS(ns)
				return m, nil, fmt.Errorf("starting store in %s: removing the identity of the detached member: %w", o.Dir, err)
			}
		}
	} else {
		if err = prepareMember(ctx, o, m); err != nil {
			return m, nil, fmt.Errorf("starting store: preparing %s for cluster %s: %w", o.Dir, o.Cluster.Name, err)
		}
		ns, err = startNATS(ctx, o, m, host, port)
	}
	return m, ns, err
}

// URL returns the URL for Connect.
func (s *Server) URL() string { return s.url }

// Close stops the server and unlocks the directory, and waits for both. It may be called
// again.
func (s *Server) Close() {
	s.end()
	<-s.done
}

// checkListen splits the address. For a store without authentication it accepts only a loopback address.
func checkListen(listen string, authenticated bool) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("listen must be host:port, got %q: %w", listen, err)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("the port of listen %q must be 0 to 65535, got %q", listen, p)
	}
	if !authenticated && !isLoopback(host) {
		return "", 0, fmt.Errorf("listen must be a loopback address, got %q; set a token or TLS to listen on other addresses", listen)
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

// lockDir creates dir and locks it for this process.
func lockDir(dir string) (*os.File, error) {
	if dir == "" {
		return nil, errors.New("a directory is required")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory %s: %w", dir, err)
	}
	lock, err := lockFile(filepath.Join(dir, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("locking directory %s: %w; stop any other store that uses it", dir, err)
	}
	return lock, nil
}

// startNATS starts the server and waits until it is ready.
func startNATS(ctx context.Context, o Options, m member, host string, port int) (*runningNATS, error) {
	if err := probePort(host, port); err != nil {
		return nil, err
	}
	onDisk, options := streamsOnDisk(o.Dir), natsOptions(o, host, port)
	auth := &authenticator{token: o.Token, secret: o.secret}
	if o.Cluster != nil {
		onDisk = nil // the other members repair what is damaged
		options.Authorization, options.CustomClientAuthentication = "", auth
		if err := o.Cluster.apply(options, m); err != nil {
			return nil, err
		}
		if names, _ := snapshotStreams(filepath.Join(o.Dir, singleStoreDir)); len(names) > 0 {
			options.Tags.Add(singleStoreTag)
		}
		if err := probePort(options.Cluster.Host, max(options.Cluster.Port, 0)); err != nil {
			return nil, err
		}
	}
	ns, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("starting store in %s: %w", o.Dir, err)
	}
	auth.system = ns.SystemAccount
	log := newLogger(o.Logger)
	ns.SetLogger(log, false, false)
	ns.Start()
	if err := waitReady(ctx, ns, log); err != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, fmt.Errorf("starting store on %s in %s: %w", o.Listen, o.Dir, err)
	}
	if err := checkRecovered(ns, onDisk); err != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, fmt.Errorf("starting store in %s: %w", o.Dir, err)
	}
	return &runningNATS{ns, options.Clone()}, nil // with the defaults that the server has set
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
		Cluster:           server.ClusterOpts{NoAdvertise: true}, // its own address may be behind NAT
		JetStreamMaxStore: maxStoreBytes, JetStreamMaxMemory: maxMemoryBytes,
	}
}

// probePort returns an error for a port in use, before the NATS server opens the streams on disk.
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

// waitReady waits until the server accepts connections. It returns early after a fatal error
// or when ctx ends.
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
			return fmt.Errorf("no response from the server within %s", startTimeout)
		}
	}
}

// streamsOnDisk lists the streams that dir contains from an earlier run.
func streamsOnDisk(dir string) []string {
	streams := filepath.Join(dir, "jetstream", server.DEFAULT_GLOBAL_ACCOUNT, "streams")
	entries, err := os.ReadDir(streams)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && hasStreamData(filepath.Join(streams, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names
}

// hasStreamData reports whether the directory of a stream contains its metadata or any data. A
// process that ended while creating the stream leaves neither.
func hasStreamData(dir string) bool {
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

// checkRecovered returns an error if a stream on disk is not served. The server only logs a
// warning for a stream that it cannot read. Without this check, a damaged store would look like
// that of a new service.
func checkRecovered(ns *server.Server, onDisk []string) error {
	info, err := ns.Jsz(&server.JSzOptions{Accounts: true, Streams: true})
	if err != nil {
		return fmt.Errorf("listing its streams: %w", err)
	}
	served := map[string]bool{}
	for _, acc := range info.AccountDetails {
		for _, s := range acc.Streams {
			served[s.Name] = true
		}
	}
	for _, name := range onDisk {
		if !served[name] {
			return fmt.Errorf("stream %s is damaged and was not recovered; move the directory away to start with an empty store, then restore the last backup with 'skyserve restore'", name)
		}
	}
	return nil
}
