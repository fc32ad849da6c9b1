package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ErrPin means that a machine presents another key than the pinned one.
var ErrPin = errors.New("not the pinned key")

// SelfSigned returns a self-signed certificate for key: what a machine presents until it has
// one of the service.
func SelfSigned(key crypto.Signer, title string, now time.Time) (*tls.Certificate, error) {
	form, err := template(title, now, authorityLife)
	if err != nil {
		return nil, err
	}
	form.KeyUsage, form.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	cert, err := sign(form, form, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// Pinned returns the TLS config for connecting to the machine whose key has this
// KeyFingerprint; any other fails with a *PinError.
func (p Party) Pinned(fingerprint string) *tls.Config {
	c := p.Client()
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if found := KeyFingerprint(s.PeerCertificates[0]); found != fingerprint {
			return &PinError{Want: fingerprint, Found: found}
		}
		return nil
	}
	return c
}

// PinError is an ErrPin with the two fingerprints: another machine, or a machine in the
// middle, responds at that address.
type PinError struct{ Want, Found string }

// Error returns a message with both fingerprints.
func (e *PinError) Error() string {
	return fmt.Sprintf("%v: want %s, found %s", ErrPin, e.Want, e.Found)
}

// Is makes it an ErrPin.
func (e *PinError) Is(target error) bool { return target == ErrPin }

// RootOf returns the authority with this fingerprint from a presented chain, for clients that
// know only the fingerprint of a service. Its error is ErrUntrusted.
func RootOf(chain []*x509.Certificate, owner string) (*x509.Certificate, error) {
	for _, c := range chain {
		if c.IsCA && Fingerprint(c) == owner {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%w: no authority with the fingerprint %s was presented", ErrUntrusted, owner)
}

// ToOwner returns the TLS config for connecting to parties of these roles of the service
// whose authority has this fingerprint, for clients without a certificate.
func ToOwner(owner string, now time.Time, roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // VerifyConnection does it
		VerifyConnection: func(s tls.ConnectionState) error {
			root, err := RootOf(s.PeerCertificates, owner)
			if err != nil {
				return err
			}
			p := Party{Root: root, Now: func() time.Time { return now }}
			return p.admit(s, x509.ExtKeyUsageServerAuth, roles)
		},
	}
}
