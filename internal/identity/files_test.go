package identity

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func leafOf(t *testing.T, p Party) (Name, time.Time) {
	t.Helper()
	pair, err := p.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	n, err := NameOf(pair.Leaf)
	if err != nil {
		t.Fatal(err)
	}
	return n, pair.Leaf.NotAfter
}

func TestServiceHasOneAuthority(t *testing.T) {
	h := Home{filepath.Join(t.TempDir(), "chat")}
	if _, err := h.Authority(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it is created: %v", err)
	}
	first, err := h.Create("chat", start)
	if err != nil {
		t.Fatal(err)
	}
	again, err := h.Create("chat", start.Add(time.Hour))
	if err != nil || again.Owner() != first.Owner() || again.Service() != "chat" {
		t.Errorf("created twice: %s and %s (%v)", first.Owner(), again.Owner(), err)
	}
	if len(first.Owner()) != 52 || strings.ToLower(first.Owner()) != first.Owner() {
		t.Errorf("the owner %q is not a valid label in every cloud", first.Owner())
	}
	for _, path := range []string{h.Dir, h.path(fileAuthority)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: mode %v (%v)", path, info.Mode(), err)
		}
	}
}

// A deletion that ends early leaves no certificate without its authority: that would be a machine which joined a service.
func TestInterruptedDeletionKeepsNoCertificate(t *testing.T) {
	h := Home{t.TempDir()}
	if _, err := h.Create("chat", time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.OperatorParty("ann", time.Now()); err != nil {
		t.Fatal(err)
	}
	inUse := h.path(fileOperator)
	if err := os.Rename(inUse, inUse+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(inUse, "in use"), 0o700); err != nil { // cannot be deleted
		t.Fatal(err)
	}
	if err := h.Delete(); err == nil {
		t.Fatal("the certificate was deleted")
	}
	if _, err := h.Authority(); err != nil {
		t.Errorf("the authority was deleted before the certificate: %v", err)
	}
	if err := os.RemoveAll(inUse); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also without a certificate, and without a directory
		if err := h.Delete(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(h.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the deletion: %v", err)
	}
}

func TestOperatorCertificateIsRenewed(t *testing.T) {
	h := Home{t.TempDir()}
	if _, err := h.OperatorParty("ann", start); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of an unknown service: %v", err)
	}
	if _, err := h.Create("chat", start); err != nil {
		t.Fatal(err)
	}
	p, err := h.OperatorParty("ann", start)
	if err != nil {
		t.Fatal(err)
	}
	if n, end := leafOf(t, p); n != (Name{"chat", Operator, "ann"}) || !end.Equal(start.Add(CertificateLife)) {
		t.Errorf("%v until %s", n, end)
	}
	for _, tt := range []struct {
		at   time.Duration
		ends time.Duration
	}{{CertificateLife - RenewBefore - time.Minute, CertificateLife}, {CertificateLife - RenewBefore + time.Minute, 2*CertificateLife - RenewBefore + time.Minute}} {
		p, err := h.OperatorParty("bob", start.Add(tt.at))
		if err != nil {
			t.Fatal(err)
		}
		if n, end := leafOf(t, p); n.ID != "ann" || !end.Equal(start.Add(tt.ends)) {
			t.Errorf("after %s: %v until %s", tt.at, n, end)
		}
	}
}

func TestInvitedOperatorCannotRenew(t *testing.T) {
	chat := authority(t, "chat")
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := chat.Certify(key.Public(), Name{"chat", Operator, "bob"}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	h := Home{t.TempDir()}
	if err := h.KeepOperator(chain, key); err != nil {
		t.Fatal(err)
	}
	p, err := h.OperatorParty("", start.Add(CertificateLife-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if n, end := leafOf(t, p); n.ID != "bob" || !end.Equal(start.Add(CertificateLife)) || !p.Root.Equal(chat.Root()) {
		t.Errorf("%v until %s", n, end)
	}
	if _, err := h.Create("chat", start); err == nil || !strings.Contains(err.Error(), "another operator invited") {
		t.Errorf("a second authority for the service: %v", err)
	}
	own := Home{t.TempDir()}
	if _, err := own.Create("chat", start); err != nil {
		t.Fatal(err)
	}
	if err := own.KeepOperator(chain, key); err == nil {
		t.Error("the operator of another authority replaced the service's own")
	}
}

func TestDelegatedAuthorityIsStored(t *testing.T) {
	chat := authority(t, "chat")
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := chat.Delegate(key.Public(), "controller", []Role{Replica, Balancer}, start, CertificateLife)
	if err != nil {
		t.Fatal(err)
	}
	h := Home{t.TempDir()}
	if _, err := h.Delegated(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it exists: %v", err)
	}
	text, err := Bundle(chain, key)
	if err == nil {
		err = WriteFile(h.path(FileDelegated), text)
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := h.Delegated()
	if err != nil || a.Owner() != chat.Owner() || a.Service() != "chat" {
		t.Errorf("stored as %v (%v)", a, err)
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Delegated(chain, other); err == nil {
		t.Error("a key of another authority was accepted")
	}
	if _, err := Delegated(chain[:1], key); err == nil {
		t.Error("a chain without its root was accepted")
	}
}

func TestInvalidFilesAreRejected(t *testing.T) {
	chat, other := authority(t, "chat"), authority(t, "chat")
	key, err := EncodeKey(chat.key)
	if err != nil {
		t.Fatal(err)
	}
	pair := append(EncodeChain(chat.chain), key...)
	tests := []struct {
		name string
		text []byte
		mode fs.FileMode
		want string
	}{
		{"good", pair, 0o600, ""},
		{"readable by others", pair, 0o640, "other users can read it (mode 0640)"},
		{"empty", nil, 0o600, "a PEM certificate, got none"},
		{"without its key", EncodeChain(chat.chain), 0o600, "a PEM private key for signing, got none"},
		{"with another key", append(EncodeChain(other.chain), key...), 0o600, "must be that of the first certificate"},
		{"without its certificate", key, 0o600, "a PEM certificate, got none"},
		{"cut off", pair[:len(pair)-20], 0o600, "a PEM private key for signing, got none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := Home{t.TempDir()}
			if err := os.WriteFile(h.path(fileAuthority), tt.text, tt.mode); err != nil {
				t.Fatal(err)
			}
			_, err := h.Authority()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "PRIVATE") {
				t.Errorf("the error contains text of the file: %v", err)
			}
		})
	}
}

func TestWriteFileIsAtomicAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for _, text := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, e := os.Stat(path)
		if err != nil || e != nil || string(got) != text || info.Mode().Perm() != 0o600 {
			t.Errorf("%q, %v (%v, %v)", got, info.Mode(), err, e)
		}
	}
	if temporary, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(temporary) > 0 {
		t.Errorf("temporary files remain: %v (%v)", temporary, err)
	}
	if err := WriteFile(filepath.Join(path, "x"), nil); err == nil {
		t.Error("a file was written without its directory")
	}
}

// A certificate that was created while the clock of the authority's machine was years ahead is not
// valid yet once the clock is correct: it is renewed.
func TestCertificateNotYetValidIsRenewed(t *testing.T) {
	h := Home{t.TempDir()}
	chat, err := h.Create("chat", start)
	if err != nil {
		t.Fatal(err)
	}
	for _, now := range []time.Time{start.AddDate(15, 0, 0), start.Add(time.Hour)} {
		p, err := h.OperatorParty("ann", now)
		if err != nil {
			t.Fatal(err)
		}
		own, issuer, err := h.Controller(now)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := p.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		certs := []*x509.Certificate{pair.Leaf}
		for _, text := range [][]byte{own, issuer} {
			chain, err := ParseChain(text)
			if err != nil {
				t.Fatal(err)
			}
			certs = append(certs, chain[0])
		}
		for _, c := range certs {
			if now.Before(c.NotBefore) || now.After(c.NotAfter) || c.CheckSignatureFrom(chat.Root()) != nil {
				t.Errorf("at %s: %s is valid from %s to %s", now, c.Subject.CommonName, c.NotBefore, c.NotAfter)
			}
		}
	}
}
