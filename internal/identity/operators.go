package identity

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What the machine of an authority keeps of operators: the certificates that it signed,
// each in a file that is called after its fingerprint, and the list of those revoked.
const (
	dirOperators = "operators"
	fileRevoked  = "revoked.crl"
)

// Record keeps the certificate of an operator, before it is handed out, so that it can be
// listed and revoked.
func (h Home) Record(c *x509.Certificate) error {
	if err := os.MkdirAll(h.path(dirOperators), dirMode); err != nil {
		return fmt.Errorf("recording the certificate of an operator: %w", err)
	}
	return WriteFile(filepath.Join(h.path(dirOperators), Fingerprint(c)+".crt"), EncodeChain([]*x509.Certificate{c}))
}

// Operators are the certificates of operators that were recorded and have not ended, by
// name and end. The files of those that have are removed.
func (h Home) Operators(now time.Time) ([]*x509.Certificate, error) {
	files, err := filepath.Glob(filepath.Join(h.path(dirOperators), "*.crt"))
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for _, file := range files {
		text, err := os.ReadFile(file)
		var chain []*x509.Certificate
		if err == nil {
			chain, err = ParseChain(text)
		}
		if err == nil && now.After(chain[0].NotAfter) {
			err = os.Remove(file)
		} else if err == nil {
			certs = append(certs, chain[0])
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
	}
	slices.SortFunc(certs, func(a, b *x509.Certificate) int {
		return cmp.Or(cmp.Compare(a.Subject.CommonName, b.Subject.CommonName), a.NotAfter.Compare(b.NotAfter), cmp.Compare(Fingerprint(a), Fingerprint(b)))
	})
	return certs, nil
}

// leastDigits is how much of a fingerprint names a certificate.
const leastDigits = 8

// Named are those of certificates of operators that a name means, or the first eight or
// more letters and digits of a fingerprint.
func Named(certs []*x509.Certificate, who string) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(certs), func(c *x509.Certificate) bool {
		n, err := NameOf(c)
		byName := err == nil && n.ID == who
		return !byName && (len(who) < leastDigits || !strings.HasPrefix(Fingerprint(c), strings.ToLower(who)))
	})
}

// RevokedFile is where the newest list is kept, in PEM.
func (h Home) RevokedFile() string { return h.path(fileRevoked) }

// Revoked is the newest list that this machine signed. It is an fs.ErrNotExist where the
// service's authority is not on this machine.
func (h Home) Revoked() (Revoked, error) {
	a, err := h.Authority()
	if err != nil {
		return Revoked{}, err
	}
	return ReadRevoked(h.RevokedFile(), a.Root())
}

// Revoke takes certificates back, and keeps the list. Where all are on it already it is
// the one that there was.
func (h Home) Revoke(certs []*x509.Certificate, now time.Time) (Revoked, error) {
	before, err := h.Revoked()
	if err != nil || !slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return !before.Has(c) }) {
		return before, err
	}
	a, err := h.Authority()
	if err != nil {
		return Revoked{}, err
	}
	list, err := a.Revoke(before, certs, now)
	if err != nil {
		return Revoked{}, err
	}
	return list, WriteFile(h.RevokedFile(), list.Text())
}
