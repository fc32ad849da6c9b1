package lbd

import (
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// revoke writes the next list, with the certificates of members, to the balancer's file.
func (f family) revoke(path string, before identity.Revoked, parties ...identity.Party) identity.Revoked {
	f.t.Helper()
	var certs []*x509.Certificate
	for _, p := range parties {
		pair, err := p.Certificate()
		if err != nil {
			f.t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			f.t.Fatal(err)
		}
		certs = append(certs, leaf)
	}
	list, err := f.Revoke(before, certs, time.Now())
	if err == nil {
		err = identity.WriteFile(path, list.Text())
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

// The admin API rejects members whose certificates are revoked, and accepts others.
func TestRevokedOperatorIsRejected(t *testing.T) {
	f := newFamily(t)
	list := filepath.Join(f.dir, "revoked.crl")
	files := f.files(identity.Balancer, "lb-us-0", time.Hour)
	files.Revoked = list
	ann, bob, cy := f.party(identity.Operator, "ann", time.Hour), f.party(identity.Operator, "bob", time.Hour), f.party(identity.Operator, "cy", time.Hour)
	open := func() (*node, func()) {
		hangups := make(chan os.Signal)
		n := start(t, service.BalancerConfig{ID: "lb-us-0", Region: "aws/us-east-1", Identity: files}, Options{ReloadSignals: hangups})
		return n, func() { hangups <- syscall.SIGHUP } // so that it does not wait five seconds
	}
	callAs := func(n *node, p identity.Party) error {
		_, err := f.administer(n, p).Snapshot(t.Context())
		return err
	}
	before, hangup := open() // while there is no file
	kept := f.administer(before, bob)
	if _, err := kept.Snapshot(t.Context()); err != nil || callAs(before, ann) != nil {
		t.Fatalf("before anybody is revoked: %v", err)
	}
	first := f.revoke(list, identity.Revoked{}, bob)
	hangup()
	n, again := open()
	if err := callAs(n, bob); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("revoked: %v", err)
	}
	if err := errors.Join(callAs(n, ann), callAs(n, cy)); err != nil {
		t.Errorf("others: %v", err)
	}
	testkit.Eventually(t, "an open connection is rejected as well", func() bool {
		_, err := kept.Snapshot(t.Context())
		var answer *telemetry.StatusError
		return errors.As(err, &answer) && answer.Status == http.StatusForbidden
	})
	f.revoke(list, first, cy)
	again()
	testkit.Eventually(t, "the next list is loaded", func() bool { return callAs(n, cy) != nil })
	if err := callAs(n, ann); err != nil {
		t.Errorf("others: %v", err)
	}
}

// A list that is older, damaged, missing or of another service is ignored.
func TestInvalidRevocationLists(t *testing.T) {
	f := newFamily(t)
	path := filepath.Join(f.dir, "revoked.crl")
	bob := f.party(identity.Operator, "bob", time.Hour)
	first := f.revoke(path, identity.Revoked{}, bob)
	second := f.revoke(path, first, f.party(identity.Operator, "cy", time.Hour))
	r, err := identity.OpenRevoked(path, f.Root())
	if err != nil {
		t.Fatal(err)
	}
	other := newFamily(t).revoke(path, second)
	for name, text := range map[string][]byte{"an older one": first.Text(), "half of it": second.Text()[:40], "another's": other.Text(), "nothing": nil} {
		if err := identity.WriteFile(path, text); err != nil {
			t.Fatal(err)
		}
		if changed, err := r.Reload(); err == nil || changed || r.List().Number() != 2 {
			t.Errorf("%s: changed %v, %v, list %d", name, changed, err, r.List().Number())
		}
	}
	if err := identity.WriteFile(path, other.Text()); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.OpenRevoked(path, f.Root()); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("a balancer that starts with another's: %v", err)
	}
}
