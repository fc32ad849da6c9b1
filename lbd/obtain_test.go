package lbd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"skyserve/internal/acme"
	"skyserve/internal/acme/testca"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

var errNoCredentials = errors.New("no credentials of AWS")

const publicName = "chat.example.com"

// forward forwards external connections to a listener of a balancer.
type forward struct {
	port int
	to   atomic.Pointer[string]
}

// newForward returns a forward without a target.
func newForward(t *testing.T) *forward {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forward{port: l.Addr().(*net.TCPAddr).Port}
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { f.pass(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); passing.Wait() })
	return f
}

func (f *forward) pass(from net.Conn) {
	defer from.Close()
	to := f.to.Load()
	if to == nil {
		return
	}
	conn, err := net.Dial("tcp", *to)
	if err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(from, conn); from.Close() })
	_, _ = io.Copy(conn, from)
	conn.Close()
	back.Wait()
}

// obtaining is a balancer that obtains its certificate, and its CA.
type obtaining struct {
	ca    *testca.CA
	cfg   service.BalancerConfig
	plain *forward
	tls   *forward
}

func newObtaining(t *testing.T, challenge string) *obtaining {
	t.Helper()
	o := &obtaining{plain: newForward(t), tls: newForward(t)}
	names := testca.Serve(t, "example.com", nil)
	names.Set(publicName, "127.0.0.1")
	o.ca = testca.Start(t, testca.Options{HTTPPort: o.plain.port, TLSPort: o.tls.port, Resolver: names.Addr})
	dir := t.TempDir()
	root := filepath.Join(dir, "root.pem")
	write(t, root, string(o.ca.Root))
	o.cfg = config("lb-us-0", "local/us")
	o.cfg.Balancer.TLS = &service.TLS{ACME: &service.ACME{Email: "ops@example.com", CA: o.ca.URL, Root: root, Challenge: challenge}}
	o.cfg.Certificate = &service.CertificateConfig{Name: publicName, Dir: filepath.Join(dir, "certificates")}
	return o
}

// handshake returns the certificate that a client of the name receives, or the error.
func handshake(public string) (*x509.Certificate, error) {
	conn, err := tls.Dial("tcp", strings.TrimPrefix(public, "https://"), &tls.Config{ServerName: publicName, InsecureSkipVerify: true}) //nolint:gosec // the authority of a test
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	leaf := conn.ConnectionState().PeerCertificates[0]
	return leaf, leaf.VerifyHostname(publicName)
}

// Until its first certificate, a balancer rejects clients and reports the reason. Then it serves, and
// a later run serves immediately, even while the CA is unavailable.
func TestBalancerObtainsCertificate(t *testing.T) {
	o := newObtaining(t, service.ChallengeTLSALPN)
	o.ca.Refuse(true)
	n := start(t, o.cfg, Options{})
	if !strings.HasPrefix(n.public, "https://") {
		t.Errorf("the public port is %s", n.public)
	}
	testkit.Eventually(t, "the rejection is reported", func() bool {
		b := n.snapshot(t).Balancer("lb-us-0")
		return b.State == "STARTING" && strings.HasPrefix(b.Reason, "waiting for certificate: ") && strings.Contains(b.Reason, "too many certificates") &&
			b.Certificate.ExpiresAt == nil && strings.Contains(b.Certificate.Waiting, "too many certificates")
	})
	if _, err := handshake(n.public); err == nil || !strings.Contains(err.Error(), "remote error: tls") {
		t.Errorf("without a certificate a handshake ends with %v", err)
	}
	if got := metricsOf(t, n); strings.Contains(got, "skyserve_tls_certificate_expires_seconds ") || !strings.Contains(got, "skyserve_tls_certificate_broken 1") {
		t.Errorf("without a certificate the metrics are\n%s", got)
	}
	n.stop()
	if err := n.wait(); err != nil {
		t.Fatal(err)
	}

	o.ca.Refuse(false)
	n = start(t, o.cfg, Options{})
	public := strings.TrimPrefix(n.public, "https://")
	o.tls.to.Store(&public)
	var leaf *x509.Certificate
	testkit.Eventually(t, "a certificate is served", func() (ok bool) {
		var err error
		leaf, err = handshake(n.public)
		return err == nil
	})
	testkit.Eventually(t, "the certificate is reported", func() bool {
		b := n.snapshot(t).Balancer("lb-us-0")
		return b.Certificate.Waiting == "" && b.Certificate.ExpiresAt != nil && b.Certificate.ExpiresAt.Equal(leaf.NotAfter)
	})
	want := "skyserve_tls_certificate_expires_seconds " + strconv.FormatFloat(float64(leaf.NotAfter.Unix()), 'g', -1, 64)
	if got := metricsOf(t, n); !strings.Contains(got, want) || !strings.Contains(got, "skyserve_tls_certificate_broken 0") {
		t.Errorf("want %s in\n%s", want, got)
	}
	n.stop()
	if err := n.wait(); err != nil {
		t.Fatal(err)
	}

	o.cfg.Balancer.TLS.ACME.CA = "https://127.0.0.1:1/away"
	n = start(t, o.cfg, Options{})
	if again, err := handshake(n.public); err != nil || !again.Equal(leaf) {
		t.Errorf("a later run serves another certificate, %v", err)
	}
}

// metricsOf returns the balancer's metrics.
func metricsOf(t *testing.T, n *node) string {
	t.Helper()
	res, err := client(t).Get(n.adminURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// With http-01 there is a port for the CA, without the API.
func TestHTTPChallengePort(t *testing.T) {
	o := newObtaining(t, service.ChallengeHTTP)
	port := testkit.FreeAddr()
	o.plain.to.Store(&port)
	o.cfg.Certificate.Listen = port
	n := start(t, o.cfg, Options{})
	testkit.Eventually(t, "a certificate is served", func() bool {
		_, err := handshake(n.public)
		return err == nil
	})
	for _, path := range []string{"/v1/models", "/healthz", "/skyserve/heartbeat"} {
		if got := status(t, client(t), "http://"+port+path); got != http.StatusNotFound {
			t.Errorf("%s on the challenge port: %d", path, got)
		}
	}
}

// The configuration of the CA is not changed while a balancer runs, and a reload does not affect the
// certificate in use.
func TestReloadKeepsObtainedCertificate(t *testing.T) {
	o := newObtaining(t, service.ChallengeTLSALPN)
	o.ca.Refuse(true)
	f := startFiled(t, o.cfg, Options{})
	f.change(func(c *service.BalancerConfig) { c.Balancer.Policy = "least-load" })
	if done := f.reload(); len(done.Restart) != 0 || len(done.Changed) != 1 {
		t.Errorf("another policy: %+v", done)
	}
	f.change(func(c *service.BalancerConfig) {
		a := *c.Balancer.TLS.ACME
		a.Email = "others@example.com"
		c.Balancer.TLS = &service.TLS{ACME: &a}
	})
	if done := f.reload(); len(done.Restart) != 1 || done.Restart[0] != "balancer.tls" {
		t.Errorf("another account: %+v", done)
	}
}

// Missing files and values of the configuration are reported at the start.
func TestACMEConfigurationErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name, want string
		change     func(*service.BalancerConfig)
	}{
		{"no root", "balancer.tls.acme.root: open /nowhere", func(c *service.BalancerConfig) { c.Balancer.TLS.ACME.Root = "/nowhere" }},
		{"an invalid root", "balancer.tls.acme.root: " + os.Args[0] + ": must contain a PEM certificate", func(c *service.BalancerConfig) { c.Balancer.TLS.ACME.Root = os.Args[0] }},
		{"no key", "balancer.tls.acme.eab.hmac: environment variable NOT_SET", func(c *service.BalancerConfig) {
			c.Balancer.TLS.ACME.EAB = &service.EAB{KeyID: "k", HMAC: "env:NOT_SET"}
		}},
		{"a port in use", "certificate.listen: listen tcp " + taken.Addr().String(), func(c *service.BalancerConfig) {
			c.Balancer.TLS.ACME.Challenge, c.Certificate.Listen = service.ChallengeHTTP, taken.Addr().String()
		}},
		{"no zone", "certificate.zone: no credentials", func(c *service.BalancerConfig) { c.Balancer.TLS.ACME.Challenge = service.ChallengeDNS }},
		{"a directory that is a file", "certificate.dir: ", func(c *service.BalancerConfig) { c.Certificate.Dir = filepath.Join(os.Args[0], "d") }},
	} {
		cfg := config("lb-us-0", "local/us")
		cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
		cfg.Balancer.TLS = &service.TLS{ACME: &service.ACME{Email: "ops@example.com"}}
		cfg.Certificate = &service.CertificateConfig{Name: publicName, Dir: t.TempDir()}
		c.change(&cfg)
		err := Run(t.Context(), cfg, Options{NewDNSRecords: func(context.Context, service.CertificateConfig) (acme.Records, error) {
			return nil, errNoCredentials
		}})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}
