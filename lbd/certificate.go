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

// lookEvery is how often the files of the certificate are looked at: whoever
// renews one does so days before the old one ends.
const lookEvery = time.Minute

// certificate is the public listener's, or the balancer's in its service, which may be replaced while it listens.
type certificate struct {
	pair    atomic.Pointer[tls.Certificate] // nil while there is none yet, which only a manager's is
	problem atomic.Pointer[error]           // why what is in the files now cannot be used; nil when it can
	manager *acme.Manager                   // writes the files; nil = somebody else does

	mu    sync.Mutex
	files service.TLS
	seen  fileState // of what is in use
}

// fileState tells one content of the two files from another.
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

// loaded is a pair that was read, and what its files were like before that.
type loaded struct {
	files service.TLS
	seen  fileState
	pair  tls.Certificate
}

// loadPair reads a certificate and its key. A file that changes meanwhile is
// seen as changed at the next look.
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

// use makes a pair the one that new connections see; it reports whether that is
// another than before. Connections that are open keep theirs.
func (c *certificate) use(l *loaded) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pair.Swap(&l.pair)
	c.files, c.seen = l.files, l.seen
	c.problem.Store(nil)
	return old == nil || !old.Leaf.Equal(l.pair.Leaf)
}

// errNoCertificate refuses a handshake. Health checks then take the balancer for what it
// is to clients: not there.
var errNoCertificate = errors.New("waiting for certificate")

// get is for tls.Config.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.pair.Load(); pair != nil {
		return pair, nil
	}
	return nil, errNoCertificate
}

// waiting says whether there is no certificate yet.
func (c *certificate) waiting() bool { return c.pair.Load() == nil }

// look takes the files up when they have changed. What cannot be used, such as
// half of a file, changes nothing and is looked at again.
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

// broke notes why what is in the files now cannot be used.
func (c *certificate) broke(err error) { c.problem.Store(&err) }

// status is the certificate as people see it; nil without one.
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

// wrong is why a newer certificate than the one in use is not; empty when nothing went wrong.
func (c *certificate) wrong() string {
	if p := c.problem.Load(); p != nil {
		return (*p).Error()
	}
	if c.manager != nil {
		return c.manager.Failure()
	}
	return ""
}

// expires is when the certificate ends. There must be one.
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

// renew takes certificates up that were renewed on disk.
func (b *balancer) renew() {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	for _, c := range []*certificate{b.cert, b.member.certificate()} {
		if c == nil || c.manager != nil { // which says when there is another
			continue
		}
		switch changed, err := c.look(); {
		case err != nil:
			b.log.Error("the certificate's files cannot be used; the one in use stays", "file", c.files.Cert, "err", err, "expires", c.expires())
		case changed:
			b.log.Info("certificate replaced", "file", c.files.Cert, "expires", c.expires())
		}
	}
}
