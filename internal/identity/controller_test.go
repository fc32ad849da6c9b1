package identity

import (
	"crypto"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// placed returns the credentials that a machine reads from its files.
func placed(t *testing.T, own, issuer []byte) (Name, *Authority) {
	t.Helper()
	there := Home{t.TempDir()}
	if _, _, err := there.ReadController(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the files exist: %v", err)
	}
	if err := errors.Join(WriteFile(there.path(FileController), own), WriteFile(there.path(FileDelegated), issuer)); err != nil {
		t.Fatal(err)
	}
	party, delegated, err := there.ReadController()
	if err != nil {
		t.Fatal(err)
	}
	name, _ := leafOf(t, party)
	return name, delegated
}

func TestControllerBundles(t *testing.T) {
	h := Home{t.TempDir()}
	if _, _, err := h.Controller(start); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the authority: %v", err)
	}
	chat, err := h.Create("chat", start)
	if err != nil {
		t.Fatal(err)
	}
	hand := func(now time.Time) (own, issuer []byte) {
		t.Helper()
		own, issuer, err := h.Controller(now)
		if err != nil {
			t.Fatal(err)
		}
		return own, issuer
	}
	own, issuer := hand(start)
	name, delegated := placed(t, own, issuer)
	if name != (Name{"chat", Controller, ControllersID}) || delegated.Owner() != chat.Owner() || !delegated.Expires().Equal(start.AddDate(1, 0, 0)) {
		t.Errorf("%v, and an authority of %s until %s", name, delegated.Owner(), delegated.Expires())
	}
	for role, certifies := range map[Role]bool{Balancer: true, Replica: true, Controller: false, Operator: false} {
		key, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := delegated.Certify(key.Public(), Name{"chat", role, "x"}, start, CertificateLife)
		if err == nil {
			_, err = Verify(chain, chat.Root(), start, x509.ExtKeyUsageClientAuth)
		}
		if (err == nil) != certifies {
			t.Errorf("Certify of a %s returned %v", role, err)
		}
	}
	quarter := 365 * 24 * time.Hour / 4
	if again, same := hand(start.Add(quarter - time.Minute)); !slices.Equal(again, own) || !slices.Equal(same, issuer) {
		t.Error("the credentials changed before their renewal")
	}
	own, issuer = hand(start.Add(quarter + time.Minute))
	if _, delegated = placed(t, own, issuer); !delegated.Expires().Equal(start.AddDate(1, 0, 0).Add(quarter + time.Minute)) {
		t.Errorf("renewed until %s", delegated.Expires())
	}
	if err := os.WriteFile(filepath.Join(h.Dir, FileController), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Controller(start); err == nil {
		t.Error("a damaged file was ignored")
	}
}

// Credentials of earlier versions, which did not record them and issued them for 90 days, can be
// revoked, too, although they are renewed immediately.
func TestUnrecordedCertificatesAreRecorded(t *testing.T) {
	home := Home{Dir: t.TempDir()}
	a, err := home.Create("chat", start)
	if err != nil {
		t.Fatal(err)
	}
	var before []*x509.Certificate
	for file, certify := range map[string]func(crypto.PublicKey) ([]*x509.Certificate, error){
		FileController: func(pub crypto.PublicKey) ([]*x509.Certificate, error) {
			return a.Certify(pub, Name{Service: "chat", Role: Controller, ID: "lb-us-0"}, start, CertificateLife)
		},
		FileDelegated: func(pub crypto.PublicKey) ([]*x509.Certificate, error) {
			return a.Delegate(pub, "lb-us-0", []Role{Balancer, Replica}, start, CertificateLife)
		},
	} {
		key, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := certify(key.Public())
		if err == nil {
			err = home.writeBundle(file, chain, key)
		}
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, chain[0])
	}
	if _, _, err := home.Controller(start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	all, err := home.Recorded()
	if err != nil {
		t.Fatal(err)
	}
	list, err := home.Revoke(SelectCertificates(all, ControllersID), start.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range before {
		if !list.Has(c) {
			t.Errorf("%s of an earlier version is still valid", c.Subject)
		}
	}
}
