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
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/telemetry"
)

// Limits of a client, each with its reason.
const (
	// opTimeout bounds one operation: a durable write takes about 1 ms, so five
	// seconds is an outage and not a slow disk.
	opTimeout = 5 * time.Second
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 2 * time.Second
	// reconnectMin and reconnectMax bound the wait between attempts: quick after
	// a restart, gentle through an outage of hours.
	reconnectMin = 50 * time.Millisecond
	reconnectMax = 5 * time.Second
	// stateMaxBytes bounds the bucket of state: thousands of replicas at 10 KB.
	stateMaxBytes = 256 << 20
)

// Store is a client of the store of one service. It reconnects for ever; while
// it is not connected every operation fails at once with ErrUnavailable. All
// methods may be called from many goroutines.
type Store struct {
	url       string // without credentials, for messages
	namespace string
	log       *slog.Logger
	now       func() time.Time

	making makeBackoff // of streams that the server could not make

	mu     sync.Mutex
	read   *Problem // why the last read failed; nil when it did not
	write  *Problem // likewise of writes
	lost   *Problem // why there is no connection; nil while there is one
	nc     *nats.Conn
	state  jetstream.KeyValue
	points jetstream.Stream
	// dropped is the day with whose points old ones were removed last.
	dropped int64
	closed  bool
	// epoch counts connections made; up is closed and replaced whenever it
	// grows, which is how watches know to start over.
	epoch uint64
	up    chan struct{}

	dialing sync.WaitGroup
	stop    context.CancelFunc
}

type config struct {
	lazy      bool
	tls       *tls.Config
	namespace string
	name      string
	log       *slog.Logger
}

// Option changes how Connect behaves.
type Option func(*config)

// Lazy makes Connect return at once and connect in the background: what a
// balancer does, whose traffic must not wait for its store.
func Lazy() Option { return func(c *config) { c.lazy = true } }

// ForService keeps everything under the service's own name, so that several
// services can share one NATS cluster: letters, digits, dashes and underscores.
// An empty name is no service in particular.
func ForService(name string) Option {
	return func(c *config) {
		if name != "" {
			c.namespace = "skyserve_" + name
		}
	}
}

// ClientName names the connection in the server's own listings.
func ClientName(name string) Option { return func(c *config) { c.name = name } }

// Secure speaks TLS from the first byte, as Options.TLS has it; nil changes nothing.
func Secure(t *tls.Config) Option { return func(c *config) { c.tls = t } }

// Logger receives connection changes; default silence.
func Logger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

var namespaceRE = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Connect reaches the store at a NATS URL (nats://host:port, several separated
// by commas). Without Lazy it fails with ErrUnavailable when no server answers;
// with Lazy it fails only on a malformed URL or option. ctx bounds the first
// attempt, not the life of the Store: call Close.
func Connect(ctx context.Context, natsURL, token string, options ...Option) (*Store, error) {
	c := config{namespace: "skyserve", name: "skyserve", log: slog.New(slog.DiscardHandler)}
	for _, o := range options {
		o(&c)
	}
	if !namespaceRE.MatchString(c.namespace) {
		return nil, fmt.Errorf("connecting to store: namespace %q: want letters, digits, dashes and underscores", c.namespace)
	}
	if _, err := url.Parse(natsURL); err != nil || natsURL == "" {
		return nil, fmt.Errorf("connecting to store: url %q: want nats://host:port", telemetry.HideCredentials(natsURL))
	}
	s := &Store{
		url: telemetry.HideCredentials(natsURL), namespace: c.namespace, log: c.log,
		now: time.Now, up: make(chan struct{}), stop: func() {},
	}
	opts := s.natsOptions(token, c)
	if c.lazy {
		s.dialLater(natsURL, opts)
		return s, nil
	}
	if err := s.dial(natsURL, opts); err != nil {
		return nil, wrap(ctx, err, "connecting to store %s", s.url)
	}
	return s, nil
}

func (s *Store) natsOptions(token string, c config) []nats.Option {
	opts := []nats.Option{
		nats.Name(c.name), nats.Timeout(dialTimeout), nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(backoff), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { s.disconnected(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { s.connected() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { s.log.Debug("store client", "err", err) }),
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

func (s *Store) dial(natsURL string, opts []nats.Option) error {
	nc, err := nats.Connect(natsURL, opts...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.nc = nc
	}
	s.mu.Unlock()
	if closed {
		nc.Close()
		return nats.ErrConnectionClosed
	}
	s.connected()
	return nil
}

// dialLater tries until the first connection stands; from then on the
// connection looks after itself.
func (s *Store) dialLater(natsURL string, opts []nats.Option) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.dialing.Go(func() {
		for attempt := 1; ; attempt++ {
			err := s.dial(natsURL, opts)
			if err == nil || ctx.Err() != nil {
				return
			}
			if attempt == 1 {
				s.log.Warn("store not reachable yet, trying on", "url", s.url, "err", err)
				s.mu.Lock()
				s.lost = &Problem{Since: s.now(), Err: fmt.Errorf("%w: connecting to %s: %w", ErrUnavailable, s.url, err)}
				s.mu.Unlock()
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(backoff(attempt)):
			}
		}
	})
}

// disconnected notes that the connection is lost.
func (s *Store) disconnected(err error) {
	s.log.Warn("store disconnected", "url", s.url, "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = &Problem{Since: s.now(), Err: fmt.Errorf("%w: connection to %s lost: %w", ErrUnavailable, s.url, cmp.Or(err, nats.ErrDisconnected))}
}

// connected notes a new connection and wakes whoever waits for one. Handles are
// dropped: the server may have come back without its streams.
func (s *Store) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.state, s.points = nil, nil
	s.read, s.write, s.lost = nil, nil, nil // of another connection, and maybe of another server
	s.making.note(s.now(), nil)
	close(s.up)
	s.up = make(chan struct{})
	s.log.Info("store connected", "url", s.url)
}

// Close ends the connection; operations then fail with ErrUnavailable.
func (s *Store) Close() {
	s.stop()
	s.mu.Lock()
	s.closed = true
	nc := s.nc
	s.mu.Unlock()
	if nc != nil {
		nc.Close()
	}
	s.dialing.Wait()
}

// Connected reports whether operations can succeed now.
func (s *Store) Connected() bool {
	_, err := s.conn()
	return err == nil
}

// conn is the live connection, or ErrUnavailable.
func (s *Store) conn() (*nats.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nc == nil || s.closed || !s.nc.IsConnected() {
		return nil, fmt.Errorf("%w: not connected to %s", ErrUnavailable, s.url)
	}
	return s.nc, nil
}

// connection is the epoch of the newest connection, whether it stands, and the
// channel that closes when a newer one is made.
func (s *Store) connection() (epoch uint64, ok bool, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, s.nc != nil && !s.closed && s.nc.IsConnected(), s.up
}

// bucket opens the bucket of state, making it on first use.
func (s *Store) bucket(ctx context.Context) (jetstream.KeyValue, error) {
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
	if err := s.making.refuses(s.now()); err != nil {
		return nil, err
	}
	kv, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: s.namespace + "_state", Description: "skyserve: desired state and leases",
		History: 1, MaxBytes: stateMaxBytes, Storage: jetstream.FileStorage,
	})
	s.making.note(s.now(), err)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.state = kv
	s.mu.Unlock()
	return kv, nil
}

// madeBucket opens the bucket of state if somebody has made it; else it fails with
// jetstream.ErrBucketNotFound.
func (s *Store) madeBucket(ctx context.Context) (jetstream.KeyValue, error) {
	nc, err := s.conn()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return js.KeyValue(ctx, s.namespace+"_state")
}

// forget drops cached handles after an error that may mean that a stream is gone.
func (s *Store) forget(err error) {
	if err == nil || !isOutage(err) {
		return
	}
	s.mu.Lock()
	s.state, s.points = nil, nil
	s.mu.Unlock()
}

// Problem is why the store does not work for this client: why its last write failed, or
// else why there is no connection, or its last read failed; nil when all is well. A write
// that lost against another one, and a key that is not there, are no failures of the store.
func (s *Store) Problem() *Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.write, s.lost, s.read)
}

// note keeps how an operation ended, for Problem, and forgets what may be gone.
func (s *Store) note(last **Problem, err error) {
	s.forget(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || !errors.Is(kindOf(err), ErrUnavailable) {
		*last = nil
		return
	}
	p := &Problem{Since: s.now(), Err: err}
	if !errors.Is(err, ErrUnavailable) {
		p.Err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if *last != nil {
		p.Since = (*last).Since
	}
	*last = p
}
