package acme

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
)

// Defaults and limits, each with its reason.
const (
	// waitingPoll is the interval of polling the store while there is no certificate: an
	// operator is waiting for it.
	waitingPoll = time.Second
	// poll is the interval once there is a certificate, in addition to the watch of the
	// store: a certificate is renewed weeks before it expires.
	poll = time.Minute
	// leaseTTL limits how long no balancer renews the certificate after the leader has failed.
	leaseTTL = 15 * time.Second
	// term limits how long one balancer is the leader. If its network or identity prevents it
	// from obtaining the certificate, another balancer tries in the next term.
	term = 6 * time.Hour
	// releaseTimeout is the timeout of releasing the lease.
	releaseTimeout = 2 * time.Second
	// maxLookups limits concurrent challenge lookups in the store: any client can cause them.
	maxLookups = 16
)

// leaseName is the lease of the balancer that obtains the certificate.
const leaseName = "acme"

func init() { certmagic.UserAgent = "skyserve" }

// Options configures a Manager.
type Options struct {
	// Name is the DNS name of the certificate.
	Name string
	// Email is the contact of the ACME account, Directory the URL of the authority's directory.
	Email, Directory string
	// Roots verify the authority's server; nil = those of the system.
	Roots *x509.CertPool
	// KeyID and MAC bind the ACME account to an external account (EAB); empty = none.
	KeyID, MAC string
	// Challenge is service.ChallengeDNS, service.ChallengeHTTP or service.ChallengeTLSALPN.
	Challenge string
	// Records writes the DNS record of dns-01; nil = this process cannot obtain the certificate
	// and uses the one that another process obtains.
	Records Records
	// Resolvers are the DNS servers that are queried for that DNS record; empty = the name
	// servers of its hosted zone.
	Resolvers []string
	// ListenTLS is the host:port of this process's public listener, ListenHTTP that of the
	// listener of Handler, for http-01.
	ListenTLS, ListenHTTP string
	// Dir is the directory of the newest certificate and, without a Store, of everything else.
	Dir string
	// Store is shared by all processes that obtain this certificate. ID identifies this one,
	// and Secret encrypts the contents. nil = nothing is shared.
	Store  *store.Store
	ID     string
	Secret string
	// Logger receives the logs; nil discards them.
	Logger *slog.Logger
	// Changed, if not nil, is called after File was written.
	Changed func()

	// renewRatio is the remaining share of a certificate's lifetime at which it is renewed. It
	// overrides the time that the authority suggests; 0 = a third, or earlier if the authority
	// suggests so.
	renewRatio float64
}

// Manager manages the certificate of one name.
type Manager struct {
	opts     Options
	log      *slog.Logger
	zap      *zap.Logger
	storage  *closing
	solver   *certmagic.Config // for challenges
	issuer   *certmagic.ACMEIssuer
	lookups  chan struct{}
	obtained chan struct{} // capacity 1
	failure  atomic.Pointer[string]
	unread   atomic.Pointer[string] // why the shared certificate could not be read or installed
	stop     func()
}

// New returns the manager of a name. It creates Dir if it is missing, and does not contact
// the authority yet. The caller must call Close.
func New(o Options) (*Manager, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the certificate directory: %w", err)
	}
	m := &Manager{opts: o, log: o.Logger, zap: toZap(o.Logger), lookups: make(chan struct{}, maxLookups), obtained: make(chan struct{}, 1)}
	m.storage = &closing{Storage: &certmagic.FileStorage{Path: o.Dir}}
	if o.Store != nil {
		sealed, err := newStorage(o.Store, o.ID, o.Secret)
		if err != nil {
			return nil, err
		}
		m.storage.Storage = sealed
	}
	var cache *certmagic.Cache
	m.solver, m.issuer, cache = m.configure()
	m.stop = cache.Stop
	return m, nil
}

// Close releases the resources of the Manager. It must be called after Run has returned.
// Nothing is written afterwards.
func (m *Manager) Close() {
	m.stop()
	m.storage.close()
}

// File returns the path of the newest certificate with its chain and key, PEM, mode 0600.
// The file does not exist until there is a certificate.
func (m *Manager) File() string { return filepath.Join(m.opts.Dir, m.opts.Name+".pem") }

// LastFailure returns why this process's last attempt to obtain or renew the certificate
// failed; empty if it succeeded, or if another process obtains the certificate.
func (m *Manager) LastFailure() string {
	if text := m.failure.Load(); text != nil {
		return *text
	}
	return ""
}

// WaitingReason returns why there is no certificate yet.
func (m *Manager) WaitingReason() string {
	if text := m.unread.Load(); text != nil && m.LastFailure() == "" {
		return *text
	}
	waiting := "waiting for a certificate from " + m.opts.Directory
	if !m.Obtains() {
		waiting = "waiting for a balancer on AWS to obtain a certificate from " + m.opts.Directory
	}
	return cmp.Or(m.LastFailure(), waiting)
}

// Obtains reports whether this process can obtain the certificate.
func (m *Manager) Obtains() bool {
	return m.opts.Challenge != service.ChallengeDNS || m.opts.Records != nil
}

// Run obtains and renews the certificate, and copies the shared certificate to File, until
// ctx ends.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.follow(ctx) })
	if m.Obtains() {
		wg.Go(func() { m.obtain(ctx) })
	}
	wg.Wait()
}

// configure returns certmagic's configuration.
func (m *Manager) configure() (*certmagic.Config, *certmagic.ACMEIssuer, *certmagic.Cache) {
	var cfg *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return cfg, nil },
		Logger:           m.zap,
	})
	cfg = certmagic.New(cache, certmagic.Config{
		Storage: m.storage, Logger: m.zap, OnEvent: m.note, RenewalWindowRatio: m.opts.renewRatio, DisableARI: m.opts.renewRatio > 0,
		OCSP: certmagic.OCSPConfig{DisableStapling: true}, // authorities are ending OCSP, and it must not delay handshakes
	})
	template := certmagic.ACMEIssuer{
		CA: m.opts.Directory, Email: m.opts.Email, Agreed: true, TrustedRoots: m.opts.Roots, Logger: m.zap,
		DisableHTTPChallenge: m.opts.Challenge != service.ChallengeHTTP, DisableTLSALPNChallenge: m.opts.Challenge != service.ChallengeTLSALPN,
	}
	template.ListenHost, template.AltTLSALPNPort = splitListen(m.opts.ListenTLS)
	if m.opts.Challenge == service.ChallengeHTTP {
		template.ListenHost, template.AltHTTPPort = splitListen(m.opts.ListenHTTP)
	}
	if m.opts.KeyID != "" {
		template.ExternalAccount = &acme.EAB{KeyID: m.opts.KeyID, MACKey: m.opts.MAC}
	}
	if m.opts.Challenge == service.ChallengeDNS && m.opts.Records != nil {
		template.DNS01Solver = &certmagic.DNS01Solver{DNSManager: certmagic.DNSManager{
			DNSProvider: provider{m.opts.Records}, TTL: recordTTL, Resolvers: m.opts.Resolvers, Logger: m.zap,
		}}
	}
	issuer := certmagic.NewACMEIssuer(cfg, template)
	cfg.Issuers = []certmagic.Issuer{issuer}
	return cfg, issuer, cache
}

// note records whether certmagic obtained a certificate.
func (m *Manager) note(_ context.Context, event string, data map[string]any) error {
	switch event {
	case "cert_failed":
		text := fmt.Sprint(data["error"])
		m.failure.Store(&text)
	case "cert_obtained":
		m.failure.Store(nil)
		select {
		case m.obtained <- struct{}{}:
		default: // already signalled
		}
	}
	return nil
}

// follow copies the shared certificate to File whenever it changes.
func (m *Manager) follow(ctx context.Context) {
	var changes <-chan store.KeyChange // nil = not shared
	if m.opts.Store != nil {
		changes = m.opts.Store.WatchReadOnly(ctx, valuePrefix+encode(m.key(certmagic.StorageKeys.SiteCert)))
	}
	for {
		err := m.installShared(ctx)
		m.unread.Store(nil)
		if err != nil && ctx.Err() == nil {
			text := err.Error()
			m.unread.Store(&text)
		}
		interval := poll
		if _, err := os.Stat(m.File()); err != nil {
			interval = waitingPoll
		}
		timer := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-m.obtained:
			timer.Stop()
		case <-changes: // closed only once ctx ends
			timer.Stop()
		case <-timer.C:
		}
	}
}

// installShared writes the shared certificate to File, unless the certificate in File was
// issued later. It does not compare expiry times, because authorities shorten lifetimes.
func (m *Manager) installShared(ctx context.Context) error {
	text, err := m.shared(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var leaf *x509.Certificate
	if err == nil {
		leaf, err = m.check(text)
	}
	if err != nil {
		return fmt.Errorf("reading the certificate of %s: %w", m.opts.Name, err)
	}
	text = append([]byte(m.authorityLine()), text...)
	old, kept, same := m.installed()
	if bytes.Equal(old, text) || same && kept.NotBefore.After(leaf.NotBefore) { // the store was restored from an older backup
		return nil
	}
	if err := identity.WriteFile(m.File(), text); err != nil {
		return err
	}
	m.log.Info("certificate installed", "name", m.opts.Name, "expires", leaf.NotAfter)
	if m.opts.Changed != nil {
		m.opts.Changed()
	}
	return nil
}

// shared returns the certificate and key that all balancers of the service share;
// fs.ErrNotExist if there is none.
func (m *Manager) shared(ctx context.Context) ([]byte, error) {
	cert, err := m.storage.Load(ctx, m.key(certmagic.StorageKeys.SiteCert))
	if err != nil {
		return nil, err
	}
	key, err := m.storage.Load(ctx, m.key(certmagic.StorageKeys.SitePrivateKey))
	return slices.Concat(cert, key), err
}

func (m *Manager) key(of func(issuer, name string) string) string {
	return of(m.issuer.IssuerKey(), m.opts.Name)
}

// check verifies that a certificate and its key belong together and are for the name.
func (m *Manager) check(text []byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, err
	}
	return pair.Leaf, pair.Leaf.VerifyHostname(m.opts.Name)
}

// obtain obtains and renews the certificate whenever this process holds the lease, until ctx
// ends.
func (m *Manager) obtain(ctx context.Context) {
	for ctx.Err() == nil {
		m.lead(ctx)
	}
}

// lead acquires the lease, then obtains and renews certificates until ctx or the term ends, or
// the lease is lost.
func (m *Manager) lead(ctx context.Context) {
	var lease *store.Lease
	if m.opts.Store != nil {
		var err error
		if lease, err = m.opts.Store.Acquire(ctx, leaseName, m.opts.ID, leaseTTL); err != nil {
			return // ctx ended
		}
	}
	life, end := context.WithTimeout(ctx, term)
	var wg sync.WaitGroup
	if lease != nil {
		wg.Go(func() { renewLease(life, end, lease) })
	}
	if m.awaitShared(life) == nil && m.letOthersStart(life) == nil {
		m.manage(life)
	}
	end()
	wg.Wait()
	if lease != nil {
		m.failure.Store(nil) // the next leader reports its own failures
		release, done := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer done()
		_ = lease.Release(release) // it also expires by itself
	}
}

// renewLease renews a lease until ctx ends, and calls end when the lease is lost.
func renewLease(ctx context.Context, end func(), lease *store.Lease) {
	ticker := time.NewTicker(leaseTTL / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := lease.Renew(ctx); err != nil && !lease.Valid() {
				end()
				return
			}
		}
	}
}

// awaitShared waits until the shared storage can be read. If it contains no certificate,
// awaitShared stores that of File.
func (m *Manager) awaitShared(ctx context.Context) error {
	for {
		_, err := m.storage.Load(ctx, m.key(certmagic.StorageKeys.SiteCert))
		if errors.Is(err, fs.ErrNotExist) {
			err = m.seed(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		timer := time.NewTimer(waitingPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

// seed stores the certificate of File in the shared storage if it is still valid. Otherwise a
// new, empty store would cause a request for another certificate, and authorities limit those
// to five per week.
func (m *Manager) seed(ctx context.Context) error {
	text, leaf, same := m.installed()
	if !same || time.Now().After(leaf.NotAfter) {
		return nil
	}
	meta, err := json.Marshal(certmagic.CertificateResource{SANs: []string{m.opts.Name}})
	if err != nil {
		return err
	}
	cert, key := splitPEM(text)
	for _, part := range []struct {
		of   func(issuer, name string) string
		text []byte
	}{ // the certificate last: readers load the others only after it exists
		{certmagic.StorageKeys.SiteMeta, meta}, {certmagic.StorageKeys.SitePrivateKey, key}, {certmagic.StorageKeys.SiteCert, cert},
	} {
		if err := m.storage.Store(ctx, m.key(part.of), part.text); err != nil {
			return err
		}
	}
	return nil
}

// othersStart is the time within which a starting process listens.
const othersStart = 3 * time.Second

// letOthersStart waits before the request for a first certificate, until balancers that start
// at the same time listen: the authority may connect to any of them, and a failed validation
// delays the certificate by a minute.
func (m *Manager) letOthersStart(ctx context.Context) error {
	if m.opts.Store == nil || m.opts.Challenge == service.ChallengeDNS || m.storage.Exists(ctx, m.key(certmagic.StorageKeys.SiteCert)) {
		return ctx.Err()
	}
	timer := time.NewTimer(othersStart)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err()
}

// manage makes certmagic obtain and renew the certificate until ctx ends.
func (m *Manager) manage(ctx context.Context) {
	cfg, _, cache := m.configure()
	defer cache.Stop()
	if err := cfg.ManageAsync(ctx, []string{m.opts.Name}); err != nil {
		text := err.Error()
		m.failure.Store(&text)
	}
	<-ctx.Done()
}

// authorityLine is the first line of File, with the authority of the certificate. PEM parsers
// ignore text before the first block.
func (m *Manager) authorityLine() string { return "authority: " + m.issuer.IssuerKey() + "\n" }

// installed returns the certificate of File; leaf is nil if the certificate is not valid for the
// name. same reports whether it is valid and from the current authority.
func (m *Manager) installed() (text []byte, leaf *x509.Certificate, same bool) {
	text, err := os.ReadFile(m.File())
	if err != nil {
		return nil, nil, false
	}
	if leaf, err = m.check(text); err != nil {
		return text, nil, false
	}
	return text, leaf, bytes.HasPrefix(text, []byte(m.authorityLine()))
}

// splitPEM splits certificates from the key after them.
func splitPEM(text []byte) (certs, key []byte) {
	first := max(bytes.Index(text, []byte(beginMark)), 0)
	last := max(bytes.LastIndex(text, []byte(beginMark)), first)
	return text[first:last], text[last:]
}

// beginMark is the start of a PEM block.
const beginMark = "-----BEGIN "
