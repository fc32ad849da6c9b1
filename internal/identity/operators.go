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

// Files on the machine with the authority: the certificates signed for operators and
// controllers, each in a file named by its fingerprint, and the revocation list.
const (
	dirOperators = "operators"
	fileRevoked  = "revoked.crl"
)

// maxRecorded is the maximum number of recorded certificates; those that expire first are
// removed.
const maxRecorded = 1000

// Record stores the certificate of an operator, of a controller or of its delegated
// authority. It is called before the certificate is sent, so that every certificate can be
// listed and revoked.
func (h Home) Record(c *x509.Certificate) error {
	path := filepath.Join(h.path(dirOperators), Fingerprint(c)+".crt")
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(h.path(dirOperators), dirMode); err != nil {
		return fmt.Errorf("recording a certificate: %w", err)
	}
	return WriteFile(path, EncodeChain([]*x509.Certificate{c}))
}

// Recorded returns the recorded certificates, sorted by name and expiry. Expired ones are
// included, since this machine's clock may be ahead; they can be revoked, too.
func (h Home) Recorded() ([]*x509.Certificate, error) {
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
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		certs = append(certs, chain[:min(1, len(chain))]...)
	}
	if certs, err = h.trimRecords(certs); err != nil {
		return nil, err
	}
	slices.SortFunc(certs, func(a, b *x509.Certificate) int {
		return cmp.Or(cmp.Compare(a.Subject.CommonName, b.Subject.CommonName), a.NotAfter.Compare(b.NotAfter), cmp.Compare(Fingerprint(a), Fingerprint(b)))
	})
	return certs, nil
}

// trimRecords removes the records in excess of maxRecorded that expire first.
func (h Home) trimRecords(certs []*x509.Certificate) ([]*x509.Certificate, error) {
	slices.SortFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	for len(certs) > maxRecorded {
		err := os.Remove(filepath.Join(h.path(dirOperators), Fingerprint(certs[0])+".crt"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("removing the record of a certificate: %w", err)
		}
		certs = certs[1:]
	}
	return certs, nil
}

// minDigits is the minimum length of a fingerprint prefix that selects a certificate.
const minDigits = 8

// SelectCertificates returns the certificates selected by a name, or by at least the first
// eight characters of a fingerprint. If who selects a certificate of the controllers or of their delegated authority, the
// result is all of these, because all controllers share them: an attacker with one of the keys has all of them.
func SelectCertificates(certs []*x509.Certificate, who string) []*x509.Certificate {
	isOperator := func(c *x509.Certificate) bool {
		n, err := NameOf(c)
		return err != nil || n.Role == Operator
	}
	controllers := slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return !isOperator(c) && selects(who, c) })
	return slices.DeleteFunc(slices.Clone(certs), func(c *x509.Certificate) bool {
		return !selects(who, c) && (isOperator(c) || !controllers)
	})
}

// selects reports whether a name or a fingerprint prefix selects a certificate.
func selects(who string, c *x509.Certificate) bool {
	n, _ := NameOf(c) // without a name, by fingerprint only
	return who != "" && n.ID == who || len(who) >= minDigits && strings.HasPrefix(Fingerprint(c), strings.ToLower(who))
}

// RevokedFile returns the path of the newest revocation list, in PEM.
func (h Home) RevokedFile() string { return h.path(fileRevoked) }

// Revoked returns the newest revocation list that this machine signed. It fails with fs.ErrNotExist if
// the service's authority is not on this machine.
func (h Home) Revoked() (Revoked, error) {
	a, err := h.Authority()
	if err != nil {
		return Revoked{}, err
	}
	return ReadRevoked(h.RevokedFile(), a.Root())
}

// Revoke revokes certificates and stores the new list. If all are already revoked, it returns
// the current list.
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
