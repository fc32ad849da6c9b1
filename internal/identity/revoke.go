package identity

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// ErrRevoked is a certificate that the service's authority took back before its end.
var ErrRevoked = errors.New("its certificate is revoked")

// ErrOlder is a list of revoked certificates that another one has replaced already.
var ErrOlder = errors.New("a newer list of revoked certificates is known")

// blockRevoked is the PEM block type of a list.
const blockRevoked = "X509 CRL"

// Revoked is the certificates that a service's authority took back: a certificate
// revocation list (RFC 5280, section 5), whose number grows with each list. The zero value
// is the list before the first.
type Revoked struct{ list *x509.RevocationList }

// Number tells which of two lists of a service is the newer one; 0 = there is none yet.
func (r Revoked) Number() int64 {
	if r.list == nil {
		return 0
	}
	return r.list.Number.Int64()
}

// Len is how many certificates are on the list.
func (r Revoked) Len() int {
	if r.list == nil {
		return 0
	}
	return len(r.list.RevokedCertificateEntries)
}

// Has says whether a certificate was taken back.
func (r Revoked) Has(c *x509.Certificate) bool {
	return r.list != nil && slices.ContainsFunc(r.list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
		return e.SerialNumber.Cmp(c.SerialNumber) == 0
	})
}

// HasSerial says whether the certificate with a serial number, in hexadecimal, was taken back.
func (r Revoked) HasSerial(serial string) bool {
	return r.list != nil && slices.ContainsFunc(r.list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
		return e.SerialNumber.Text(16) == serial
	})
}

// Text is the list in PEM; empty where there is none.
func (r Revoked) Text() []byte {
	if r.list == nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockRevoked, Bytes: r.list.Raw})
}

// ParseRevoked reads a Text, which root must have signed; an empty one is the list before
// the first. Errors include ErrStranger.
func ParseRevoked(text []byte, root *x509.Certificate) (Revoked, error) {
	if len(text) == 0 {
		return Revoked{}, nil
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != blockRevoked || len(bytes.TrimSpace(rest)) > 0 {
		return Revoked{}, errors.New("reading the list of revoked certificates: want one list in PEM")
	}
	list, err := x509.ParseRevocationList(block.Bytes)
	switch {
	case err != nil:
		return Revoked{}, fmt.Errorf("reading the list of revoked certificates: %w", err)
	case list.CheckSignatureFrom(root) != nil:
		return Revoked{}, fmt.Errorf("%w: the list of revoked certificates is not signed by the service's authority", ErrStranger)
	case list.Number == nil || list.Number.Sign() <= 0 || !list.Number.IsInt64():
		return Revoked{}, fmt.Errorf("reading the list of revoked certificates: want a number above 0, got %v", list.Number)
	}
	return Revoked{list}, nil
}

// ReadRevoked reads the list in a file; where there is no file, it is the one before the first.
func ReadRevoked(path string, root *x509.Certificate) (Revoked, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Revoked{}, err
	}
	return ParseRevoked(text, root)
}

// RevokedFile is the list in a file that may be replaced by a newer one, for Party.Revoked.
type RevokedFile struct {
	path string
	root *x509.Certificate
	list atomic.Pointer[Revoked]
}

// OpenRevoked reads the list in a file, which root must have signed; an empty path is one of
// nobody.
func OpenRevoked(path string, root *x509.Certificate) (*RevokedFile, error) {
	f := &RevokedFile{path: path, root: root}
	f.list.Store(&Revoked{})
	_, err := f.Look()
	return f, err
}

// Path is that of the file.
func (f *RevokedFile) Path() string { return f.path }

// List is the list in force.
func (f *RevokedFile) List() Revoked { return *f.list.Load() }

// Has says whether a certificate is on the list in force.
func (f *RevokedFile) Has(c *x509.Certificate) bool { return f.list.Load().Has(c) }

// Look takes up the list that is in the file by now; one that cannot be used, or is older,
// changes nothing.
func (f *RevokedFile) Look() (changed bool, err error) {
	if f.path == "" {
		return false, nil
	}
	list, err := ReadRevoked(f.path, f.root)
	if err == nil {
		err = list.After(f.List())
	}
	if err != nil || list.Number() == f.List().Number() {
		return false, err
	}
	f.list.Store(&list)
	return true, nil
}

// After is an error unless r may take the place of before: ErrOlder, or nil.
func (r Revoked) After(before Revoked) error {
	if r.Number() < before.Number() {
		return fmt.Errorf("%w: it has the number %d, and this one %d", ErrOlder, before.Number(), r.Number())
	}
	return nil
}

// maxRevoked bounds a list: 400 KB, which every agent takes. Beyond it those leave that were
// revoked first.
const maxRevoked = 10_000

// Revoke signs the list that follows before: with these certificates beside those that are
// on it. They stay there when they have ended: this machine's clock, which would tell, may
// be ahead, and whoever left the list would be let in. Only a service's own authority can.
func (a *Authority) Revoke(before Revoked, certs []*x509.Certificate, now time.Time) (Revoked, error) {
	if a.chain[0].KeyUsage&x509.KeyUsageCRLSign == 0 {
		return Revoked{}, errors.New("signing a list of revoked certificates: this authority is not one that may: it is a delegated one, or was made before there were such lists")
	}
	form := &x509.RevocationList{
		Number: big.NewInt(before.Number() + 1), ThisUpdate: now, NextUpdate: a.chain[0].NotAfter, // it holds until another one comes
	}
	if before.list != nil {
		form.RevokedCertificateEntries = slices.Clone(before.list.RevokedCertificateEntries)
	}
	for _, c := range certs {
		if !before.Has(c) {
			form.RevokedCertificateEntries = append(form.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: now})
		}
	}
	form.RevokedCertificateEntries = form.RevokedCertificateEntries[max(0, len(form.RevokedCertificateEntries)-maxRevoked):]
	der, err := x509.CreateRevocationList(rand.Reader, form, a.chain[0], a.key)
	if err != nil {
		return Revoked{}, fmt.Errorf("signing a list of revoked certificates: %w", err)
	}
	list, err := x509.ParseRevocationList(der)
	return Revoked{list}, err
}
