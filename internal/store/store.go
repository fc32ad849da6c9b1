package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/telemetry"
)

// Limits of a client, each with its reason.
const (
	// opTimeout is the timeout of one operation: a durable write takes about 1 ms, so a write
	// of five seconds is an outage and not a slow disk.
	opTimeout = 5 * time.Second
	// dialTimeout is the timeout of one attempt to connect.
	dialTimeout = 2 * time.Second
	// reconnectMin and reconnectMax limit the backoff: short after a restart of the server,
	// long during an outage of hours.
	reconnectMin = 50 * time.Millisecond
	reconnectMax = 5 * time.Second
	// startGrace is for how long a client that has never connected logs no warning: the server may be starting at the same
	// time, for which it takes less than a second.
	startGrace = 3 * time.Second
	// stateMaxBytes limits the state bucket: thousands of replicas of 10 KB each.
	stateMaxBytes = 256 << 20
)

// Store is a client of the store of one service. It keeps reconnecting. While it is not connected, operations fail at
// once with ErrUnavailable, with these exceptions: Acquire, watches and FollowEvents wait, WriteBackup and RestoreBackup
// wait up to opTimeout, and objects in a bucket of a cloud (FilesIn) need no connection. It is safe for concurrent use.
type Store struct {
	namespace   string // the prefix of all names in the store: see ForService
	log         *slog.Logger
	now         func() time.Time
	filesBucket CloudBucket // where objects are stored; nil = in NATS

	creation createBackoff // the backoff of creating the state bucket and the streams of points and events

	mu               sync.Mutex
	servers          string  // the URLs of Connect
	url              string  // the same without credentials, for messages
	readOutage       *Outage // why the last read failed; nil if it succeeded
	writeOutage      *Outage // why the last write failed; nil if it succeeded
	connectionOutage *Outage // why there is no connection; nil while connected
	nc               *nats.Conn
	state            jetstream.KeyValue
	points           jetstream.Stream
	events           jetstream.Stream
	// pointsCleanupDay is the newest day in the last append of points, in days since the Unix epoch: an append with
	// another day removes expired points. eventsCleanupDay is the latest day of an appended event: a later day removes
	// expired events.
	pointsCleanupDay, eventsCleanupDay int64
	closed                             bool
	// lastWrite is when the server last answered a write on this connection, also with a revision conflict, or else when
	// the connection was made. lastSwitch is when switchServer last ended a connection.
	lastWrite, lastSwitch time.Time
	// lastAnswer is when an operation was last answered on this connection, or else when the connection was made.
	lastAnswer time.Time
	// connectionCount is the number of connections so far. nextConnection is closed and replaced when the next
	// connection is made, which restarts all watches.
	connectionCount uint64
	nextConnection  chan struct{}

	background sync.WaitGroup
	stop       context.CancelFunc
}

type config struct {
	lazy        bool
	tls         *tls.Config
	namespace   string
	name        string
	log         *slog.Logger
	filesBucket CloudBucket
}

// Option configures Connect.
type Option func(*config)

// Lazy makes Connect return at once and connect in the background.
func Lazy() Option { return func(c *config) { c.lazy = true } }

// ForService prefixes all names in the store with "skyserve_" and the service's name, so that several services can
// share a NATS cluster. The name may contain letters, digits and dashes. It must not contain an underscore: a backup of
// service a would contain the data of service a_b. With an empty name, the prefix is "skyserve".
func ForService(name string) Option {
	return func(c *config) {
		if name != "" {
			c.namespace = "skyserve_" + name
		}
	}
}

// ClientName sets the name of the connection that the server displays.
func ClientName(name string) Option { return func(c *config) { c.name = name } }

// Secure uses TLS from the first byte, as Options.TLS does; nil has no effect.
func Secure(t *tls.Config) Option { return func(c *config) { c.tls = t } }

// Logger sets the logger, for example of connection changes and of stored data that cannot be decoded. The default
// discards all logs.
func Logger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

var namespaceRE = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Connect connects to the store at a NATS URL (nats://host:port, several separated by
// commas). The client uses the first server that responds. It changes to another server when the connection is lost,
// or when the server can no longer read or write, for example because it is partitioned from the others. List the
// server on this machine first. Without Lazy, Connect fails with ErrUnavailable if no server responds; with Lazy
// it fails only on an invalid URL or option.
//
// The end of ctx does not interrupt Connect, which waits up to dialTimeout (2 s) for each server. If it fails after ctx
// has ended, its error is that of ctx. The end of ctx does not disconnect the client either: call Close.
func Connect(ctx context.Context, natsURL, token string, options ...Option) (*Store, error) {
	c := config{namespace: "skyserve", name: "skyserve", log: slog.New(slog.DiscardHandler)}
	for _, o := range options {
		o(&c)
	}
	if !namespaceRE.MatchString(c.namespace) {
		return nil, fmt.Errorf("connecting to store: namespace must be letters, digits, dashes and underscores, got %q", c.namespace)
	}
	if err := CheckURL(natsURL); err != nil {
		return nil, fmt.Errorf("connecting to store: %w", err)
	}
	s := &Store{
		servers: natsURL, url: telemetry.HideCredentials(natsURL), namespace: c.namespace, log: c.log, filesBucket: c.filesBucket,
		now: time.Now, nextConnection: make(chan struct{}),
	}
	opts := s.natsOptions(token, c)
	if !c.lazy {
		if err := s.dial(opts); err != nil {
			return nil, wrap(ctx, err, "connecting to store %s", s.url)
		}
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	if c.lazy {
		s.background.Go(func() { s.dialLater(background, opts) })
	}
	s.background.Go(func() { s.checkMember(background) })
	return s, nil
}

// CheckURL checks the URL of a store, without a connection to it: see Connect.
func CheckURL(natsURL string) error {
	if _, err := url.Parse(natsURL); err != nil || natsURL == "" {
		return fmt.Errorf("url must be nats://host:port, got %q", telemetry.HideCredentials(natsURL))
	}
	return nil
}

func (s *Store) natsOptions(token string, c config) []nats.Option {
	opts := []nats.Option{
		nats.Name(c.name), nats.Timeout(dialTimeout), nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(backoff), nats.DontRandomize(), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { s.disconnected(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { s.connected() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			s.log.Debug("the connection to the store reported an error", "err", err)
		}),
	}
	if token != "" {
		opts = append(opts, nats.Token(token))
	}
	if c.tls != nil {
		opts = append(opts, nats.Secure(c.tls), nats.TLSHandshakeFirst())
	}
	return opts
}

// backoff doubles from reconnectMin to reconnectMax with the count of attempts.
func backoff(attempts int) time.Duration {
	d := reconnectMin
	for i := 1; i < attempts && d < reconnectMax; i++ {
		d *= 2
	}
	return min(d, reconnectMax)
}

func (s *Store) dial(opts []nats.Option) error {
	s.mu.Lock()
	servers := s.servers
	s.mu.Unlock()
	nc, err := nats.Connect(servers, opts...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.nc = nc
	}
	changed := s.servers
	s.mu.Unlock()
	if closed {
		nc.Close()
		return nats.ErrConnectionClosed
	}
	if changed != servers { // SetURL was called during nats.Connect
		if err := nc.SetServerPool(strings.Split(changed, ",")); err != nil {
			s.log.Warn("changing the servers of the store failed", "err", err)
		}
	}
	s.connected()
	return nil
}

// dialLater connects, with retries, until ctx ends. After the first connection the NATS
// client reconnects by itself. It logs failures of more than startGrace, once.
func (s *Store) dialLater(ctx context.Context, opts []nats.Option) {
	began, warned := s.now(), false
	for attempt := 1; ; attempt++ {
		err := s.dial(opts)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		if attempt == 1 {
			s.connectionOutage = &Outage{Since: s.now(), Err: fmt.Errorf("%w: connecting to %s: %w", ErrUnavailable, s.url, err)}
		}
		if !warned && s.now().Sub(began) >= startGrace {
			warned = true
			s.log.Warn("connecting to the store failed; retrying in the background", "url", s.url, "err", err)
		}
		s.mu.Unlock()
		if !sleep(ctx, backoff(attempt)) {
			return
		}
	}
}

// disconnected records the loss of the connection.
func (s *Store) disconnected(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = cmp.Or(err, nats.ErrDisconnected)
	s.log.Warn("store disconnected", "url", s.url, "err", err)
	s.connectionOutage = &Outage{Since: s.now(), Err: fmt.Errorf("%w: connection to %s lost: %w", ErrUnavailable, s.url, err)}
}

// connected records a new connection and wakes all goroutines that wait for one. It drops
// cached handles, because the server may have lost its streams.
func (s *Store) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connectionCount++
	s.lastWrite, s.lastAnswer = s.now(), s.now()
	s.state, s.points, s.events = nil, nil, nil
	s.readOutage, s.writeOutage, s.connectionOutage = nil, nil, nil // they are of an earlier connection, maybe to another server
	s.creation.recordResult(s.now(), nil)
	close(s.nextConnection)
	s.nextConnection = make(chan struct{})
	s.log.Info("store connected", "url", s.url)
}

// Close closes the connection; operations then fail with ErrUnavailable.
func (s *Store) Close() {
	s.stop()
	s.mu.Lock()
	s.closed = true
	nc := s.nc
	s.mu.Unlock()
	if nc != nil {
		nc.Close()
	}
	s.background.Wait()
}

// Connected reports whether there is a connection to a server. Operations may fail nevertheless: see Outage.
func (s *Store) Connected() bool {
	_, err := s.conn()
	return err == nil
}

// conn returns the connection, or ErrUnavailable.
func (s *Store) conn() (*nats.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nc == nil || s.closed || !s.nc.IsConnected() {
		return nil, fmt.Errorf("%w: not connected to %s", ErrUnavailable, s.url)
	}
	return s.nc, nil
}

// awaitConn returns the connection, and waits up to opTimeout for one: a backup or a restore is often the first command
// after a start.
func (s *Store) awaitConn(ctx context.Context) (*nats.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	for {
		_, _, next := s.connectionState()
		nc, err := s.conn()
		if err == nil || ctx.Err() != nil {
			return nc, err
		}
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}

// newestConn returns the newest connection, even if it is lost; nil before the first.
func (s *Store) newestConn() *nats.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nc
}

// connectionState returns the number of connections so far, whether the newest one is up, and a channel
// that is closed at the next one.
func (s *Store) connectionState() (count uint64, up bool, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connectionCount, s.nc != nil && !s.closed && s.nc.IsConnected(), s.nextConnection
}

// openStateBucket opens the state bucket and creates it on first use.
func (s *Store) openStateBucket(ctx context.Context) (jetstream.KeyValue, error) {
	nc, err := s.conn()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	kv := s.state
	s.mu.Unlock()
	if kv != nil {
		return kv, nil
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	if err := s.creation.recentFailure(s.now()); err != nil {
		return nil, err
	}
	bucket := s.stateBucketName()
	_, err = ensureStream(ctx, nc, js, bucketStream(bucket, "skyserve: desired state and leases", stateMaxBytes), s.startAtTokenFloor)
	if err == nil {
		err = retryRead(ctx, nc, func(ctx context.Context) (err error) {
			kv, err = js.KeyValue(ctx, bucket)
			return err
		})
	}
	s.creation.recordResult(s.now(), creationFailure(nc, err))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.state = kv
	s.mu.Unlock()
	return kv, nil
}

// openExistingStateBucket opens the state bucket. It fails with jetstream.ErrBucketNotFound if the bucket does
// not exist.
func (s *Store) openExistingStateBucket(ctx context.Context) (jetstream.KeyValue, error) {
	nc, err := s.conn()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return js.KeyValue(ctx, s.stateBucketName())
}

// dropHandles drops cached handles after an error that may be due to a missing stream.
func (s *Store) dropHandles(err error) {
	if err == nil || !isOutage(err) {
		return
	}
	s.mu.Lock()
	s.state, s.points, s.events = nil, nil, nil
	s.mu.Unlock()
}

// Outage returns why the store is unavailable to this client: why its last write failed, or else why
// there is no connection, or else why its last read failed; nil if none of these applies. A revision
// conflict and a missing key are not failures of the store.
func (s *Store) Outage() *Outage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.writeOutage, s.connectionOutage, s.readOutage)
}

// recordResult records the result of an operation for Outage, and drops handles that may be stale. last is
// &s.readOutage or &s.writeOutage.
func (s *Store) recordResult(last **Outage, err error) { s.recordResultSince(last, s.now(), err) }

// recordResultSince is recordResult for an operation that began at a time: the outage has lasted since then.
func (s *Store) recordResultSince(last **Outage, since time.Time, err error) {
	if errors.Is(err, context.Canceled) {
		return // the caller did not wait for the result
	}
	s.dropHandles(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || !errors.Is(kindOf(err), ErrUnavailable) {
		*last, s.lastAnswer = nil, s.now()
		if last == &s.writeOutage {
			s.lastWrite = s.now()
		}
		return
	}
	outage := &Outage{Since: since, Err: err}
	if !errors.Is(err, ErrUnavailable) {
		outage.Err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if *last != nil {
		outage.Since = (*last).Since
	}
	*last = outage
	s.switchServer(err)
}
