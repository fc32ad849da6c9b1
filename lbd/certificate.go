package lbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/acme"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// certificateInterval is the interval of checks of the certificate files for changes. Certificates are renewed
// days before they expire.
const certificateInterval = time.Minute

// certificate is the certificate of the public listener, or the balancer's identity certificate. It
// may be replaced while in use.
type certificate struct {
	pair    atomic.Pointer[tls.Certificate] // nil while there is no certificate yet, which is only possible with a manager
	problem atomic.Pointer[error]           // the reason why the current files cannot be used; nil if they can
	manager *acme.Manager                   // writes the files; nil = another program writes them

	mu    sync.Mutex
	files service.TLS
	state fileState // state of the files in use
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

// loadedPair is a certificate pair and the state of its files before it was read.
type loadedPair struct {
	files service.TLS
	state fileState
	pair  tls.Certificate
}

// loadPair reads a certificate and its key. If a file changes meanwhile, the next check detects it.
func loadPair(files service.TLS) (*loadedPair, error) {
	seen, err := stateOfFiles(files)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return &loadedPair{files, seen, pair}, nil
}

// replace sets the pair for new connections. It reports whether the pair differs from the previous
// one. Open connections keep their certificate.
func (c *certificate) replace(l *loadedPair) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pair.Swap(&l.pair)
	c.files, c.state = l.files, l.state
	c.problem.Store(nil)
	return old == nil || !old.Leaf.Equal(l.pair.Leaf)
}

// errNoCertificate rejects a handshake. The balancer is then unreachable for clients and for health
// checks.
var errNoCertificate = errors.New("waiting for certificate")

// getCertificate returns the certificate for tls.Config.
func (c *certificate) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.pair.Load(); pair != nil {
		return pair, nil
	}
	return nil, errNoCertificate
}

// waiting reports whether there is no certificate yet.
func (c *certificate) waiting() bool { return c.pair.Load() == nil }

// reloadIfChanged reloads the files if they have changed. Invalid files, such as partly written ones, are
// ignored and checked again later.
func (c *certificate) reloadIfChanged() (changed bool, err error) {
	c.mu.Lock()
	files, seen := c.files, c.state
	c.mu.Unlock()
	now, err := stateOfFiles(files)
	if err == nil && now == seen {
		c.problem.Store(nil)
		return false, nil
	}
	var l *loadedPair
	if err == nil {
		l, err = loadPair(files)
	}
	if err != nil {
		c.setProblem(err)
		return false, err
	}
	return c.replace(l), nil
}

// setProblem records the reason why the current files cannot be used.
func (c *certificate) setProblem(err error) { c.problem.Store(&err) }

// status returns the certificate's status; nil without a certificate.
func (c *certificate) status() *telemetry.Certificate {
	if c == nil {
		return nil
	}
	if c.waiting() {
		return &telemetry.Certificate{Waiting: c.manager.WaitingReason()}
	}
	ends := c.expires().UTC()
	return &telemetry.Certificate{ExpiresAt: &ends, Problem: c.problemText()}
}

// problemText returns the reason why a newer certificate is not in use; empty if there is no
// problem.
func (c *certificate) problemText() string {
	if p := c.problem.Load(); p != nil {
		return (*p).Error()
	}
	if c.manager != nil {
		return c.manager.LastFailure()
	}
	return ""
}

// expires returns the expiry time of the certificate, which must exist.
func (c *certificate) expires() time.Time { return c.pair.Load().Leaf.NotAfter }

// runEvery calls do at a fixed interval until ctx ends.
func runEvery(ctx context.Context, interval time.Duration, do func()) {
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

// reloadCertificates reloads certificates that were renewed on disk.
func (b *balancer) reloadCertificates() {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	for _, c := range []*certificate{b.cert, b.identity.certificate()} {
		if c == nil || c.manager != nil { // the manager reports a new certificate itself
			continue
		}
		switch changed, err := c.reloadIfChanged(); {
		case err != nil:
			b.log.Error("loading the certificate failed, keeping the current one", "file", c.files.Cert, "err", err, "expires", c.expires())
		case changed:
			b.log.Info("certificate replaced", "file", c.files.Cert, "expires", c.expires())
			if c == b.cert { // the controller records the others
				b.recordEvent(telemetry.EventCertificate, fmt.Sprintf("%s uses a new certificate, valid until %s", b.cfg.ID, c.expires().UTC().Format(time.DateOnly)), "its files were replaced")
			}
		}
	}
}
