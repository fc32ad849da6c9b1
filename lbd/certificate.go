package lbd

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/acme"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// lookEvery is how often the certificate files are checked for changes. They are renewed days before
// they expire.
const lookEvery = time.Minute

// certificate is the certificate of the public listener, or the balancer's identity certificate. It
// may be replaced while in use.
type certificate struct {
	pair    atomic.Pointer[tls.Certificate] // nil while there is none yet, which only happens with a manager
	problem atomic.Pointer[error]           // why the current files cannot be used; nil if they can
	manager *acme.Manager                   // writes the files; nil = they come from outside

	mu    sync.Mutex
	files service.TLS
	seen  fileState // state of the files in use
}

// fileState identifies one version of the two files.
type fileState struct {
	certAt, keyAt     time.Time
	certSize, keySize int64
}

func stateOfFiles(files service.TLS) (s fileState, err error) {
	cert, err := os.Stat(files.Cert)
	if err != nil {
		return s, err
	}
	key, err := os.Stat(files.Key)
	if err != nil {
		return s, err
	}
	return fileState{cert.ModTime(), key.ModTime(), cert.Size(), key.Size()}, nil
}

// loaded is a certificate pair and the state of its files before it was read.
type loaded struct {
	files service.TLS
	seen  fileState
	pair  tls.Certificate
}

// loadPair reads a certificate and its key. If a file changes meanwhile, the next check detects it.
func loadPair(files service.TLS) (*loaded, error) {
	seen, err := stateOfFiles(files)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return &loaded{files, seen, pair}, nil
}

// use makes a pair the one for new connections. It reports whether the pair differs from the one
// before. Open connections keep theirs.
func (c *certificate) use(l *loaded) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pair.Swap(&l.pair)
	c.files, c.seen = l.files, l.seen
	c.problem.Store(nil)
	return old == nil || !old.Leaf.Equal(l.pair.Leaf)
}

// errNoCertificate rejects a handshake. Health checks then treat the balancer as clients do: as
// unreachable.
var errNoCertificate = errors.New("waiting for certificate")

// get returns the certificate for tls.Config.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.pair.Load(); pair != nil {
		return pair, nil
	}
	return nil, errNoCertificate
}

// waiting reports whether there is no certificate yet.
func (c *certificate) waiting() bool { return c.pair.Load() == nil }

// look reloads the files if they have changed. Invalid files, such as a partly written one, change
// nothing and are checked again.
func (c *certificate) look() (changed bool, err error) {
	c.mu.Lock()
	files, seen := c.files, c.seen
	c.mu.Unlock()
	now, err := stateOfFiles(files)
	if err == nil && now == seen {
		c.problem.Store(nil)
		return false, nil
	}
	var l *loaded
	if err == nil {
		l, err = loadPair(files)
	}
	if err != nil {
		c.broke(err)
		return false, err
	}
	return c.use(l), nil
}

// broke records why the current files cannot be used.
func (c *certificate) broke(err error) { c.problem.Store(&err) }

// status returns the certificate's status; nil without a certificate.
func (c *certificate) status() *telemetry.Certificate {
	if c == nil {
		return nil
	}
	if c.waiting() {
		return &telemetry.Certificate{Waiting: c.manager.Waiting()}
	}
	ends := c.expires().UTC()
	return &telemetry.Certificate{ExpiresAt: &ends, Problem: c.wrong()}
}

// wrong returns why a newer certificate is not in use; empty if nothing failed.
func (c *certificate) wrong() string {
	if p := c.problem.Load(); p != nil {
		return (*p).Error()
	}
	if c.manager != nil {
		return c.manager.Failure()
	}
	return ""
}

// expires returns when the certificate expires. There must be one.
func (c *certificate) expires() time.Time { return c.pair.Load().Leaf.NotAfter }

// every calls do at a fixed interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

// renew reloads certificates that were renewed on disk.
func (b *balancer) renew() {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	for _, c := range []*certificate{b.cert, b.member.certificate()} {
		if c == nil || c.manager != nil { // the manager reports a new certificate itself
			continue
		}
		switch changed, err := c.look(); {
		case err != nil:
			b.log.Error("certificate files cannot be used; keeping the current certificate", "file", c.files.Cert, "err", err, "expires", c.expires())
		case changed:
			b.log.Info("certificate replaced", "file", c.files.Cert, "expires", c.expires())
		}
	}
}
