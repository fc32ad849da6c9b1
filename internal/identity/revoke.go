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

// ErrRevoked means that the service's authority has revoked the certificate.
var ErrRevoked = errors.New("certificate revoked")

// ErrOlder means that a revocation list is older than the current one.
var ErrOlder = errors.New("the revocation list is older than the current one")

// blockRevoked is the PEM block type of a list.
const blockRevoked = "X509 CRL"

// Revoked is a certificate revocation list of a service's authority (RFC 5280, section 5).
// Each list has a greater number than the one before. The zero value is the empty list before
// the first.
type Revoked struct{ list *x509.RevocationList }

// Number returns the number of the list: the newer of two lists has the greater one. 0 =
// no list yet.
func (r Revoked) Number() int64 {
	if r.list == nil {
		return 0
	}
	return r.list.Number.Int64()
}

// Len returns the number of certificates on the list.
func (r Revoked) Len() int {
	if r.list == nil {
		return 0
	}
	return len(r.list.RevokedCertificateEntries)
}

// Has reports whether a certificate is revoked.
func (r Revoked) Has(c *x509.Certificate) bool {
	return r.list != nil && slices.ContainsFunc(r.list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
		return e.SerialNumber.Cmp(c.SerialNumber) == 0
	})
}

// HasSerial reports whether the certificate with a serial number, in hexadecimal, is revoked.
func (r Revoked) HasSerial(serial string) bool {
	return r.list != nil && slices.ContainsFunc(r.list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
		return e.SerialNumber.Text(16) == serial
	})
}

// Text returns the list in PEM; empty if there is none.
func (r Revoked) Text() []byte {
	if r.list == nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockRevoked, Bytes: r.list.Raw})
}

// ParseRevoked parses the output of Text that root signed; an empty text is the empty list.
// Errors include ErrUntrusted.
func ParseRevoked(text []byte, root *x509.Certificate) (Revoked, error) {
	if len(text) == 0 {
		return Revoked{}, nil
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != blockRevoked || len(bytes.TrimSpace(rest)) > 0 {
		return Revoked{}, errors.New("parsing the revocation list: must be one list in PEM")
	}
	list, err := x509.ParseRevocationList(block.Bytes)
	switch {
	case err != nil:
		return Revoked{}, fmt.Errorf("parsing the revocation list: %w", err)
	case list.CheckSignatureFrom(root) != nil:
		return Revoked{}, fmt.Errorf("%w: the revocation list must be signed by the service's CA", ErrUntrusted)
	case list.Number == nil || list.Number.Sign() <= 0 || !list.Number.IsInt64():
		return Revoked{}, fmt.Errorf("parsing the revocation list: the number must be above 0, got %v", list.Number)
	}
	return Revoked{list}, nil
}

// ReadRevoked reads the list in a file; a missing file is the empty list.
func ReadRevoked(path string, root *x509.Certificate) (Revoked, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Revoked{}, err
	}
	return ParseRevoked(text, root)
}

// RevokedFile is a list in a file that may be replaced by a newer one, for Party.Revoked.
type RevokedFile struct {
	path string
	root *x509.Certificate
	list atomic.Pointer[Revoked]
}

// OpenRevoked reads the list in a file, which root must have signed; an empty path is an
// empty list.
func OpenRevoked(path string, root *x509.Certificate) (*RevokedFile, error) {
	f := &RevokedFile{path: path, root: root}
	f.list.Store(&Revoked{})
	_, err := f.Reload()
	return f, err
}

// Path returns the path of the file.
func (f *RevokedFile) Path() string { return f.path }

// List returns the current list.
func (f *RevokedFile) List() Revoked { return *f.list.Load() }

// Has reports whether a certificate is on the current list.
func (f *RevokedFile) Has(c *x509.Certificate) bool { return f.list.Load().Has(c) }

// Reload reloads the file; an invalid or older list changes nothing.
func (f *RevokedFile) Reload() (changed bool, err error) {
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

// After returns nil if r may replace before, else ErrOlder.
func (r Revoked) After(before Revoked) error {
	if r.Number() < before.Number() {
		return fmt.Errorf("%w: its number must be at least %d, got %d", ErrOlder, before.Number(), r.Number())
	}
	return nil
}

// maxRevoked is the maximum number of certificates on a list: 400 KB, which every agent
// accepts. The certificates revoked first are removed.
const maxRevoked = 10_000

// Revoke signs the next list after before, with certs added. Expired certificates stay on the
// list: this machine's clock may be ahead, and a certificate removed too early would be
// accepted again. Only a service's own authority can sign a list.
func (a *Authority) Revoke(before Revoked, certs []*x509.Certificate, now time.Time) (Revoked, error) {
	if a.chain[0].KeyUsage&x509.KeyUsageCRLSign == 0 {
		return Revoked{}, errors.New("signing the revocation list: this certificate authority has no permission: it is delegated, or an early version of skyserve created it")
	}
	fields := &x509.RevocationList{
		Number: big.NewInt(before.Number() + 1), ThisUpdate: now, NextUpdate: a.chain[0].NotAfter, // valid until it is replaced
	}
	if before.list != nil {
		fields.RevokedCertificateEntries = slices.Clone(before.list.RevokedCertificateEntries)
	}
	for _, c := range certs {
		if !before.Has(c) {
			fields.RevokedCertificateEntries = append(fields.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: now})
		}
	}
	fields.RevokedCertificateEntries = fields.RevokedCertificateEntries[max(0, len(fields.RevokedCertificateEntries)-maxRevoked):]
	der, err := x509.CreateRevocationList(rand.Reader, fields, a.chain[0], a.key)
	if err != nil {
		return Revoked{}, fmt.Errorf("signing the revocation list: %w", err)
	}
	list, err := x509.ParseRevocationList(der)
	return Revoked{list}, err
}
