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

// Defaults and bounds, each with its reason.
const (
	// waitingPoll is how often the store is looked at while there is no certificate: a
	// person waits for it.
	waitingPoll = time.Second
	// poll is how often it is looked at later, beside being told of changes: a certificate is
	// renewed weeks before it ends.
	poll = time.Minute
	// leaseTTL bounds how long nobody obtains after a balancer that did has died.
	leaseTTL = 15 * time.Second
	// term bounds how long one balancer obtains: one whose network or identity does not let
	// it must not keep the others from trying.
	term = 6 * time.Hour
	// releaseTimeout bounds giving the lease back.
	releaseTimeout = 2 * time.Second
	// maxLookups bounds the challenges that are looked for in the store at once: anybody may ask.
	maxLookups = 16
)

// leaseName is the lease of whoever obtains.
const leaseName = "acme"

func init() { certmagic.UserAgent = "skyserve" }

// Options are what a Manager needs.
type Options struct {
	// Name is what the certificate is for.
	Name string
	// Email is the contact of the account; Directory the URL of the authority's directory.
	Email, Directory string
	// Roots are trusted as the authority's server; nil = those of the system.
	Roots *x509.CertPool
	// KeyID and MAC bind the account to one made by other means; empty = there is none.
	KeyID, MAC string
	// Challenge is service.ChallengeDNS, service.ChallengeHTTP or service.ChallengeTLSALPN.
	Challenge string
	// Records writes the record that dns-01 asks for; nil = this process cannot, and takes up
	// what others obtain.
	Records Records
	// Resolvers are asked whether that record is there; empty = the zone's name servers.
	Resolvers []string
	// ListenTLS is where this process listens for the public, host:port; ListenHTTP where it
	// serves Handler, for http-01.
	ListenTLS, ListenHTTP string
	// Dir keeps the newest certificate, and without a Store all there is.
	Dir string
	// Store is shared by all who obtain this certificate, ID tells them apart and Secret is
	// what the contents are encrypted with. A nil Store is not shared.
	Store  *store.Store
	ID     string
	Secret string
	// Logger receives what happens; nil = silence.
	Logger *slog.Logger
	// Changed is called after File was written; nil = nobody waits for that.
	Changed func()

	renewRatio float64 // of a certificate's time that is left when it is renewed, whatever the authority says; 0 = a third, or sooner where it does
}

// Manager has the certificate of one name.
type Manager struct {
	opts      Options
	log       *slog.Logger
	zap       *zap.Logger
	storage   *closing
	answering *certmagic.Config // for challenges
	issuer    *certmagic.ACMEIssuer
	lookups   chan struct{}
	obtained  chan struct{} // holds one
	failure   atomic.Pointer[string]
	unread    atomic.Pointer[string] // why the store could not be read
	stop      func()
}

// New makes the manager of a name; it makes Dir where it is missing and asks nobody
// anything yet. Close ends it.
func New(o Options) (*Manager, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of certificates: %w", err)
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
	m.answering, m.issuer, cache = m.configure()
	m.stop = cache.Stop
	return m, nil
}

// Close ends what New began. It must come after the end of Run; nothing is written after it.
func (m *Manager) Close() {
	m.stop()
	m.storage.close()
}

// File holds the newest certificate with its chain and its key, PEM, mode 0600. It is
// missing until there is one.
func (m *Manager) File() string { return filepath.Join(m.opts.Dir, m.opts.Name+".pem") }

// Failure says why the newest try of this process to obtain or renew the certificate failed;
// empty when it did not, or another process tries.
func (m *Manager) Failure() string {
	if text := m.failure.Load(); text != nil {
		return *text
	}
	return ""
}

// Waiting says why there is no certificate yet.
func (m *Manager) Waiting() string {
	if text := m.unread.Load(); text != nil && m.Failure() == "" {
		return *text
	}
	usual := "it is being obtained from " + m.opts.Directory
	if !m.Obtains() {
		usual = "a balancer at AWS obtains it from " + m.opts.Directory
	}
	return cmp.Or(m.Failure(), usual)
}

// Obtains says whether this process can obtain a certificate by itself.
func (m *Manager) Obtains() bool {
	return m.opts.Challenge != service.ChallengeDNS || m.opts.Records != nil
}

// Run obtains the certificate, keeps it renewed and takes up what others obtained, until
// ctx ends.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.follow(ctx) })
	if m.Obtains() {
		wg.Go(func() { m.obtain(ctx) })
	}
	wg.Wait()
}

// configure is how certmagic does its work here.
func (m *Manager) configure() (*certmagic.Config, *certmagic.ACMEIssuer, *certmagic.Cache) {
	var cfg *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return cfg, nil },
		Logger:           m.zap,
	})
	cfg = certmagic.New(cache, certmagic.Config{
		Storage: m.storage, Logger: m.zap, OnEvent: m.note, RenewalWindowRatio: m.opts.renewRatio, DisableARI: m.opts.renewRatio > 0,
		OCSP: certmagic.OCSPConfig{DisableStapling: true}, // authorities give up OCSP, and handshakes are not its to delay
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

// note keeps how obtaining goes.
func (m *Manager) note(_ context.Context, event string, data map[string]any) error {
	switch event {
	case "cert_failed":
		text := fmt.Sprint(data["error"])
		m.failure.Store(&text)
	case "cert_obtained":
		m.failure.Store(nil)
		select {
		case m.obtained <- struct{}{}:
		default: // it is taken up already
		}
	}
	return nil
}

// follow takes up the certificate whenever it is another one.
func (m *Manager) follow(ctx context.Context) {
	var changes <-chan store.Change // nil = nobody else writes
	if m.opts.Store != nil {
		changes = m.opts.Store.Follow(ctx, valuePrefix+encode(m.key(certmagic.StorageKeys.SiteCert)))
	}
	for {
		err := m.takeUp(ctx)
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

// takeUp writes the certificate that is shared into File, unless what is there was issued later.
// When they end does not tell: authorities shorten what they issue.
func (m *Manager) takeUp(ctx context.Context) error {
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
	old, kept, same := m.kept()
	if bytes.Equal(old, text) || same && kept.NotBefore.After(leaf.NotBefore) { // where an older store was restored
		return nil
	}
	if err := identity.WriteFile(m.File(), text); err != nil {
		return err
	}
	m.log.Info("certificate taken up", "name", m.opts.Name, "expires", leaf.NotAfter)
	if m.opts.Changed != nil {
		m.opts.Changed()
	}
	return nil
}

// shared is the certificate with its key that all balancers of the service share; it is an
// fs.ErrNotExist where there is none.
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

// check makes sure of a certificate with its key: that they fit each other and are for the name.
func (m *Manager) check(text []byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, err
	}
	return pair.Leaf, pair.Leaf.VerifyHostname(m.opts.Name)
}

// obtain obtains and renews whenever it is this process's turn.
func (m *Manager) obtain(ctx context.Context) {
	for ctx.Err() == nil {
		m.turn(ctx)
	}
}

// turn is one turn of obtaining: until ctx or the term ends, or the lease is lost.
func (m *Manager) turn(ctx context.Context) {
	var lease *store.Lease
	if m.opts.Store != nil {
		var err error
		if lease, err = m.opts.Store.Acquire(ctx, leaseName, m.opts.ID, leaseTTL); err != nil {
			return // which only the end of ctx brings about
		}
	}
	life, end := context.WithTimeout(ctx, term)
	var wg sync.WaitGroup
	if lease != nil {
		wg.Go(func() { hold(life, end, lease) })
	}
	if m.await(life) == nil && m.letOthersStart(life) == nil {
		m.manage(life)
	}
	end()
	wg.Wait()
	if lease != nil {
		m.failure.Store(nil) // it is another's to tell of from here on
		release, done := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer done()
		_ = lease.Release(release) // it ends by itself
	}
}

// hold renews a lease until ctx ends, and ends it when the lease is lost.
func hold(ctx context.Context, end func(), lease *store.Lease) {
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

// await waits until what is shared can be read, and gives it what this process still has
// where it has nothing.
func (m *Manager) await(ctx context.Context) error {
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

// seed shares the certificate of File, if one is there that holds yet: a store that began
// anew is no reason to ask for another, of which an authority gives five a week.
func (m *Manager) seed(ctx context.Context) error {
	text, leaf, same := m.kept()
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
	}{ // the certificate last: it is what is looked for
		{certmagic.StorageKeys.SiteMeta, meta}, {certmagic.StorageKeys.SitePrivateKey, key}, {certmagic.StorageKeys.SiteCert, cert},
	} {
		if err := m.storage.Store(ctx, m.key(part.of), part.text); err != nil {
			return err
		}
	}
	return nil
}

// othersStart is how long a process that starts takes to listen.
const othersStart = 3 * time.Second

// letOthersStart waits, before a first certificate is asked for, until processes that start
// together with this one listen: the authority may connect to any of them, and one that does
// not answer costs a minute.
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

// manage has certmagic obtain and renew until ctx ends.
func (m *Manager) manage(ctx context.Context) {
	cfg, _, cache := m.configure()
	defer cache.Stop()
	if err := cfg.ManageAsync(ctx, []string{m.opts.Name}); err != nil {
		text := err.Error()
		m.failure.Store(&text)
	}
	<-ctx.Done()
}

// authorityLine begins File: whose certificate it is. What stands before the first block of
// PEM is nothing to those who read certificates.
func (m *Manager) authorityLine() string { return "authority: " + m.issuer.IssuerKey() + "\n" }

// kept is the certificate of File, and whether it is one that can be used, of the authority that
// is asked now; leaf is nil where it cannot be used.
func (m *Manager) kept() (text []byte, leaf *x509.Certificate, same bool) {
	text, err := os.ReadFile(m.File())
	if err != nil {
		return nil, nil, false
	}
	if leaf, err = m.check(text); err != nil {
		return text, nil, false
	}
	return text, leaf, bytes.HasPrefix(text, []byte(m.authorityLine()))
}

// splitPEM parts certificates from the key behind them.
func splitPEM(text []byte) (certs, key []byte) {
	first := max(bytes.Index(text, []byte(beginMark)), 0)
	last := max(bytes.LastIndex(text, []byte(beginMark)), first)
	return text[first:last], text[last:]
}

// beginMark begins a block of PEM.
const beginMark = "-----BEGIN "
