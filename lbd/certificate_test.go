package lbd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// writePair writes a new certificate with that serial number, and its key.
func writePair(t *testing.T, files service.TLS, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// A certificate with a higher number expires later, so that the content differs.
	ends := time.Date(2100+int(serial), 1, 1, 0, 0, 0, 0, time.UTC)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: ends, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, files.Cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, files.Key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	// A renewal happens at another time; file systems may not distinguish two writes at the same
	// moment.
	at := time.Unix(1_700_000_000+serial, 0)
	for _, file := range []string{files.Cert, files.Key} {
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// serial returns the serial number of the certificate of a new connection.
func serial(t *testing.T, public string) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(public, "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a certificate of this test
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// halve leaves the first half of a file, like a writer that has not finished.
func halve(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(text[:len(text)/2]))
}

func pairIn(dir string) service.TLS {
	return service.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
}

// New connections use the renewed certificate, open ones continue, and an invalid one is ignored.
func TestCertificateIsReplaced(t *testing.T) {
	files := pairIn(t.TempDir())
	writePair(t, files, 1)
	cfg := config("lb-us-0", "local/us")
	cfg.Balancer.TLS = &files
	f := startFiled(t, cfg, Options{})
	hc, plain := client(t), client(t)
	hc.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // as above
	if got := status(t, hc, f.public+"/healthz"); got != http.StatusOK || serial(t, f.public) != 1 {
		t.Fatalf("before: %d, certificate %d", got, serial(t, f.public))
	}

	halve(t, files.Cert)
	if got := f.refused(); !strings.Contains(got, "balancer.tls: ") {
		t.Errorf("half a certificate: %q", got)
	}
	if got := f.metric(t, plain, "skyserve_tls_certificate_broken"); got != "skyserve_tls_certificate_broken 1" || serial(t, f.public) != 1 {
		t.Errorf("half a certificate: metric %q, certificate %d", got, serial(t, f.public))
	}
	if b := f.snapshot(t).Balancer("lb-us-0"); b.Certificate == nil || b.Certificate.ExpiresAt.Year() != 2101 ||
		b.Certificate.Problem == "" || strings.Contains(b.Certificate.Problem, "PRIVATE") {
		t.Errorf("half a certificate: the snapshot has %+v, %+v", b, b.Certificate)
	}
	writePair(t, files, 2)
	if done := f.reload(); len(done.Changed) != 1 || done.Changed[0] != "balancer.tls: the certificate" {
		t.Errorf("reload did %+v", done)
	}
	if got := f.metric(t, plain, "skyserve_tls_certificate_broken"); got != "skyserve_tls_certificate_broken 0" || serial(t, f.public) != 2 {
		t.Errorf("renewed: metric %q, certificate %d", got, serial(t, f.public))
	}
	if b := f.snapshot(t).Balancer("lb-us-0"); b.Certificate == nil || b.Certificate.ExpiresAt.Year() != 2102 || b.Certificate.Problem != "" {
		t.Errorf("renewed: the snapshot has %+v", b.Certificate)
	}
	if got := status(t, hc, f.public+"/healthz"); got != http.StatusOK {
		t.Errorf("the open connection: %d", got)
	}

	otherFiles := pairIn(t.TempDir())
	writePair(t, otherFiles, 3)
	f.change(func(c *service.BalancerConfig) { c.Balancer.TLS = &otherFiles })
	if done := f.reload(); len(done.Changed) != 1 || len(done.Restart) != 0 || serial(t, f.public) != 3 {
		t.Errorf("other files: reload did %+v, certificate %d", done, serial(t, f.public))
	}
}

func TestCertificateFilesAreWatched(t *testing.T) {
	files := pairIn(t.TempDir())
	writePair(t, files, 1)
	var c certificate
	load := func() {
		pair, err := loadPair(files)
		if err != nil {
			t.Fatal(err)
		}
		c.replace(pair)
	}
	load()
	year := func() int { return c.expires().Year() }
	if changed, err := c.reloadIfChanged(); changed || err != nil {
		t.Errorf("nothing was renewed: %v, %v", changed, err)
	}
	writePair(t, files, 2)
	halve(t, files.Key)
	for range 2 { // the files are checked again
		if changed, err := c.reloadIfChanged(); changed || err == nil || c.status().Problem != err.Error() || year() != 2101 {
			t.Errorf("half a key: %v, %v, in use is that of %d", changed, err, year())
		}
	}
	writePair(t, files, 3)
	if changed, err := c.reloadIfChanged(); !changed || err != nil || c.status().Problem != "" || year() != 2103 {
		t.Errorf("renewed: %v, %v, in use is that of %d", changed, err, year())
	}
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	if _, err := c.reloadIfChanged(); err == nil || year() != 2103 {
		t.Errorf("the key is missing: %v, in use is that of %d", err, year())
	}
}

func TestRunEveryUsesItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*certificateInterval+time.Second)
		defer cancel()
		looked := 0
		runEvery(ctx, certificateInterval, func() { looked++ })
		if looked != 10 {
			t.Errorf("looked %d times in ten intervals", looked)
		}
	})
}

// Balancers on one machine that use TLS for clients use it for each other too, although their
// certificate is for the service's name.
func TestPeersOnOneMachineUseTLS(t *testing.T) {
	files := pairIn(t.TempDir())
	writePair(t, files, 1)
	balancer := func(id string, region service.Region) *filed {
		cfg := config(id, region)
		cfg.Balancer.TLS = &files
		return startFiled(t, cfg, Options{})
	}
	us, eu := balancer("lb-us-0", "local/us"), balancer("lb-eu-0", "local/eu")
	us.change(func(c *service.BalancerConfig) {
		c.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: eu.public}}
	})
	us.reload()
	testkit.Eventually(t, "the peer has reported", func() bool {
		b := us.snapshot(t).Balancer("lb-eu-0")
		return b != nil && b.Responds() && b.RTTMillis != nil
	})
}
