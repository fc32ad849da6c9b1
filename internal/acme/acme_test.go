package acme

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"

	"skyserve/internal/acme/testca"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/testkit"
)

const (
	testSecret = "a token of the balancers"
	timeout    = 30 * time.Second // of a machine that is busy with other tests
)

// within waits until check returns nil.
func within(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// zone is a hosted zone to which a process can write.
type zone struct {
	mu     sync.Mutex
	values map[string]string
	wrote  []string
	err    error
}

func (z *zone) SetTXT(_ context.Context, name, value string, _ time.Duration) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.err != nil {
		return z.err
	}
	if z.values == nil {
		z.values = map[string]string{}
	}
	z.values[name] = value
	z.wrote = append(z.wrote, name)
	return nil
}

func (z *zone) RemoveTXT(_ context.Context, name, value string, _ time.Duration) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.values[name] != value {
		return fmt.Errorf("%s is %q, not %q", name, z.values[name], value)
	}
	delete(z.values, name)
	return nil
}

func (z *zone) txt(name string) []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	if v, has := z.values[name]; has {
		return []string{v}
	}
	return nil
}

// TestMain lets more tests than processors run at once: they wait for authorities and other balancers.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// worlds counts the worlds: certmagic has one list of names in progress for the whole process, so each has its own name.
var worlds atomic.Int32

// world contains a certificate authority, the hosted zone of the DNS name, and one address at which
// balancers listen.
type world struct {
	*testing.T
	name  string
	ca    *testca.CA
	names *testca.Names
	zone  *zone
	plain net.Listener
	tls   net.Listener
	at    atomic.Pointer[Manager] // the manager that the authority reaches: the last started one
}

func newWorld(t *testing.T, accounts map[string]string) *world {
	t.Helper()
	w := &world{T: t, name: fmt.Sprintf("chat%d.example.com", worlds.Add(1)), zone: &zone{}}
	w.plain, w.tls = listen(t), listen(t)
	w.names = testca.Serve(t, "example.com", w.zone.txt)
	w.names.Set(w.name, "127.0.0.1")
	w.ca = testca.Start(t, testca.Options{
		HTTPPort: w.plain.Addr().(*net.TCPAddr).Port, TLSPort: w.tls.Addr().(*net.TCPAddr).Port, Resolver: w.names.Addr, Accounts: accounts,
	})
	w.serve()
	return w
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// options returns the options of a process that solves a challenge.
func (w *world) options(challenge string) Options {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.ca.Root)
	o := Options{
		Name: w.name, Email: "ops@example.com", Directory: w.ca.URL, Roots: roots, Challenge: challenge,
		ListenTLS: w.tls.Addr().String(), ListenHTTP: w.plain.Addr().String(), Dir: w.TempDir(), ID: "lb-us-0",
	}
	if challenge == service.ChallengeDNS {
		o.Records, o.Resolvers = w.zone, []string{w.names.Addr}
	}
	return o
}

// shared starts a store in a directory. It returns functions that connect to it and that stop it.
func shared(t *testing.T, dir string) (connect func(id string) *store.Store, end func()) {
	t.Helper()
	server, err := store.Serve(t.Context(), store.Options{Dir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return func(id string) *store.Store {
		t.Helper()
		s, err := store.Connect(t.Context(), server.URL(), "", store.ForService("chat"), store.ClientName(id))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}, server.Close
}

// run runs a manager until the returned function is called, or the test ends.
func (w *world) run(o Options) (*Manager, func()) {
	w.Helper()
	m, err := New(o)
	if err != nil {
		w.Fatal(err)
	}
	w.at.Store(m)
	ctx, cancel := context.WithCancel(w.Context())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	end := sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		m.Close()
	})
	w.Cleanup(end)
	return m, end
}

// serve serves challenges at the listeners of the world.
func (w *world) serve() {
	plain := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.at.Load().Handler().ServeHTTP(rw, r) }), ReadHeaderTimeout: timeout}
	secure := tls.NewListener(w.tls, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if c := w.at.Load().TLSConfig(hello); c != nil {
			return c, nil
		}
		return nil, errors.New("no certificate")
	}})
	var wg sync.WaitGroup
	wg.Go(func() { _ = plain.Serve(w.plain) })
	wg.Go(func() {
		for {
			conn, err := secure.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(w.Context())
			conn.Close()
		}
	})
	w.Cleanup(func() { w.plain.Close(); w.tls.Close(); wg.Wait() })
}

// certificate waits for the certificate of a manager.
func (w *world) certificate(m *Manager) *x509.Certificate {
	w.Helper()
	var pair tls.Certificate
	within(w.T, "a certificate of "+w.name, func() error {
		var err error
		if pair, err = tls.LoadX509KeyPair(m.File(), m.File()); err != nil {
			err = fmt.Errorf("%w; LastFailure is %q", err, m.LastFailure())
		}
		return err
	})
	if err := pair.Leaf.VerifyHostname(w.name); err != nil {
		w.Error(err)
	}
	if len(pair.Certificate) < 2 {
		w.Errorf("the chain has %d certificates", len(pair.Certificate))
	}
	if info, err := os.Stat(m.File()); err != nil || info.Mode().Perm() != 0o600 {
		w.Errorf("the file with the key: %v, %v", info.Mode(), err)
	}
	return pair.Leaf
}

// A certificate is obtained with each kind of challenge, and the DNS record is removed.
func TestEachChallengeObtainsCertificate(t *testing.T) {
	testkit.Slow(t)
	for _, challenge := range []string{service.ChallengeTLSALPN, service.ChallengeHTTP, service.ChallengeDNS} {
		t.Run(challenge, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			m, _ := w.run(w.options(challenge))
			w.certificate(m)
			if m.LastFailure() != "" || w.ca.Orders() != 1 {
				t.Errorf("%d orders, LastFailure is %q", w.ca.Orders(), m.LastFailure())
			}
			if challenge != service.ChallengeDNS {
				return
			}
			if len(w.zone.wrote) != 1 || w.zone.wrote[0] != "_acme-challenge."+w.name {
				t.Errorf("wrote %q", w.zone.wrote)
			}
			within(t, "the DNS record is removed", func() error {
				if values := w.zone.txt("_acme-challenge." + w.name); values != nil {
					return fmt.Errorf("its values are %q", values)
				}
				return nil
			})
		})
	}
}

// The listener for challenges rejects all other requests.
func TestChallengeListenerRejectsOtherRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	m, _ := w.run(w.options(service.ChallengeHTTP))
	w.certificate(m) // so that no order is in progress when the test ends
	for _, path := range []string{"/", "/v1/models", "/.well-known/acme-challenge/", "/.well-known/acme-challenge/x"} {
		resp, err := http.Get("http://" + w.plain.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// One of the balancers that share a store obtains the certificate. All of them install it, and use it
// while the store is unavailable.
func TestBalancersShareCertificate(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	w := newWorld(t, nil)
	connect, endStore := shared(t, t.TempDir())
	managers := map[string]*Manager{}
	ends := map[string]func(){}
	options := map[string]Options{}
	for _, id := range []string{"lb-us-0", "lb-eu-0", "lb-gcp-0"} {
		o := w.options(service.ChallengeDNS)
		o.ID, o.Store, o.Secret = id, connect(id), testSecret
		if id == "lb-gcp-0" {
			o.Records = nil // its machine has no IAM role
		}
		options[id] = o
		managers[id], ends[id] = w.run(o)
	}
	first := w.certificate(managers["lb-us-0"])
	for id, m := range managers {
		if got := w.certificate(m); !got.Equal(first) {
			t.Errorf("%s has the certificate %v, lb-us-0 %v", id, got.SerialNumber, first.SerialNumber)
		}
	}
	if w.ca.Orders() != 1 {
		t.Errorf("%d orders", w.ca.Orders())
	}

	for _, end := range ends {
		end()
	}
	endStore()
	o := options["lb-gcp-0"]
	again, _ := w.run(o)
	if got := w.certificate(again); !got.Equal(first) {
		t.Error("without the store there is another certificate")
	}
	within(t, "the unavailable store is reported", func() error {
		if p := again.WaitingReason(); !strings.Contains(p, "reading the certificate of "+w.name) {
			return fmt.Errorf("the reason is %q", p)
		}
		return nil
	})
}

// A new, empty store does not cause another order: a balancer stores its own certificate in it.
func TestNewStoreIsSeededFromFile(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	w := newWorld(t, nil)
	o := w.options(service.ChallengeTLSALPN)
	connect, _ := shared(t, t.TempDir())
	o.Store, o.Secret = connect("before"), testSecret
	m, end := w.run(o)
	first := w.certificate(m)
	end()

	connect, _ = shared(t, t.TempDir())
	o.Store = connect("after")
	w.run(o)
	other := w.options(service.ChallengeDNS)
	other.Store, other.Secret, other.Records = connect("other"), testSecret, nil
	follower, _ := w.run(other)
	if got := w.certificate(follower); !got.Equal(first) || w.ca.Orders() != 1 {
		t.Errorf("%d orders, the same certificate: %v", w.ca.Orders(), got.Equal(first))
	}
}

// A certificate that expires soon is renewed, and the other balancers install the new one.
func TestExpiringCertificateIsRenewed(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	w := newWorld(t, nil)
	connect, _ := shared(t, t.TempDir())
	o := w.options(service.ChallengeTLSALPN)
	o.Store, o.Secret = connect("a"), testSecret
	m, end := w.run(o)
	first := w.certificate(m)
	end()

	changed := make(chan struct{}, 2)
	other := w.options(service.ChallengeDNS)
	other.ID, other.Store, other.Secret, other.Records, other.Changed = "lb-us-1", connect("c"), testSecret, nil, func() { changed <- struct{}{} }
	follower, _ := w.run(other)
	if got := w.certificate(follower); !got.Equal(first) {
		t.Error("another balancer has another certificate")
	}
	<-changed
	o.renewRatio = 1 // any remaining lifetime is due for renewal
	o.Store, o.Changed = connect("b"), func() { changed <- struct{}{} }
	m, _ = w.run(o)
	for range 2 {
		select {
		case <-changed:
		case <-time.After(timeout):
			t.Fatalf("no renewal; LastFailure is %q", m.LastFailure())
		}
	}
	renewed := w.certificate(m)
	if renewed.Equal(first) || w.ca.Orders() != 2 {
		t.Errorf("%d orders, another certificate: %v", w.ca.Orders(), !renewed.Equal(first))
	}
	if got := w.certificate(follower); !got.Equal(renewed) {
		t.Error("the other balancer has another certificate")
	}
}

// The rejection of an authority is reported with its message. The order is retried after a backoff.
func TestRejectedOrderIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.ca.Refuse(true)
	o := w.options(service.ChallengeTLSALPN)
	m, end := w.run(o)
	within(t, "the rejection is reported", func() error {
		if p := m.LastFailure(); !strings.Contains(p, "too many certificates already issued") {
			return fmt.Errorf("the reason is %q", p)
		}
		return nil
	})
	if _, err := os.Stat(m.File()); err == nil {
		t.Error("there is a certificate")
	}
	end()
	w.ca.Refuse(false)
	m, _ = w.run(o)
	w.certificate(m)
	if m.LastFailure() != "" {
		t.Errorf("LastFailure is still %q", m.LastFailure())
	}
}

// A denied write of the DNS record is reported.
func TestDeniedRecordIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.zone.err = errors.New("route53:ChangeResourceRecordSets is not allowed")
	m, _ := w.run(w.options(service.ChallengeDNS))
	within(t, "the denied write is reported", func() error {
		if p := m.LastFailure(); !strings.Contains(p, "route53:ChangeResourceRecordSets is not allowed") {
			return fmt.Errorf("the reason is %q", p)
		}
		return nil
	})
}

// An authority that requires an external account receives its binding.
func TestExternalAccountBinding(t *testing.T) {
	t.Parallel()
	mac := base64.RawURLEncoding.EncodeToString([]byte("a key that is long enough for HMAC"))
	w := newWorld(t, map[string]string{"kid-1": mac})
	o := w.options(service.ChallengeTLSALPN)
	m, end := w.run(o)
	within(t, "the order without a binding is rejected", func() error {
		if p := m.LastFailure(); !strings.Contains(p, "externalAccountRequired") {
			return fmt.Errorf("the reason is %q", p)
		}
		return nil
	})
	end()
	o.KeyID, o.MAC = "kid-1", mac
	m, _ = w.run(o)
	w.certificate(m)
}

// After a change of the authority, the certificate of the former one is served until the new one has
// issued a certificate.
func TestAuthorityIsChanged(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	w, later := newWorld(t, nil), newWorld(t, nil)
	later.name = w.name
	later.names.Set(w.name, "127.0.0.1")
	o := w.options(service.ChallengeTLSALPN)
	m, end := w.run(o)
	first := w.certificate(m)
	end()
	next := later.options(service.ChallengeTLSALPN)
	next.Dir = o.Dir
	later.ca.Refuse(true)
	m, end = later.run(next)
	within(t, "the new authority rejects the order", func() error {
		if m.LastFailure() == "" {
			return errors.New("LastFailure is empty")
		}
		return nil
	})
	if got := later.certificate(m); !got.Equal(first) {
		t.Error("the certificate was removed")
	}
	end()
	later.ca.Refuse(false)
	m, _ = later.run(next)
	within(t, "the certificate is from the new authority", func() error {
		if later.certificate(m).Equal(first) {
			return errors.New("the certificate is still the first one")
		}
		return nil
	})
}

// The certificate that was issued last is used, even if it expires before the one that it replaces:
// authorities shorten lifetimes, and require an early renewal of certificates that they revoke.
func TestNewestCertificateIsInstalled(t *testing.T) {
	const name, day = "chat.example.com", 24 * time.Hour
	now := time.Now().Truncate(time.Second)
	pair := func(issued, life time.Duration) (cert, key []byte) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		form := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: now.Add(issued), NotAfter: now.Add(issued + life)}
		der, err := x509.CreateCertificate(rand.Reader, form, form, private.Public(), private)
		if err != nil {
			t.Fatal(err)
		}
		text, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
	}
	for _, tt := range []struct {
		name        string
		kept, other [2]time.Duration // when it was issued, and for how long
		taken       bool
	}{
		{"a later one for as long", [2]time.Duration{-60 * day, 90 * day}, [2]time.Duration{-day, 90 * day}, true},
		{"a later one that ends before", [2]time.Duration{-10 * day, 90 * day}, [2]time.Duration{-day, 45 * day}, true},
		{"an earlier one, of a store that was restored", [2]time.Duration{-day, 90 * day}, [2]time.Duration{-60 * day, 90 * day}, false},
		{"an earlier one that ends after", [2]time.Duration{-day, 45 * day}, [2]time.Duration{-10 * day, 90 * day}, false},
	} {
		m, err := New(Options{Name: name, Directory: "https://ca.example.com/directory", Challenge: service.ChallengeTLSALPN, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		cert, key := pair(tt.kept[0], tt.kept[1])
		kept := slices.Concat([]byte(m.authorityLine()), cert, key)
		if err := os.WriteFile(m.File(), kept, 0o600); err != nil {
			t.Fatal(err)
		}
		cert, key = pair(tt.other[0], tt.other[1])
		err = errors.Join(m.storage.Store(t.Context(), m.key(certmagic.StorageKeys.SiteCert), cert), m.storage.Store(t.Context(), m.key(certmagic.StorageKeys.SitePrivateKey), key))
		if err == nil {
			err = m.installShared(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(m.File())
		if taken := !bytes.Equal(now, kept); err != nil || taken != tt.taken {
			t.Errorf("%s: installed: %v (%v), want %v", tt.name, taken, err, tt.taken)
		}
	}
}
