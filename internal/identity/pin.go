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
var ErrPin = errors.New("key fingerprint mismatch")

// SelfSigned returns a self-signed certificate for key. A machine presents it until it is
// enrolled.
func SelfSigned(key crypto.Signer, title string, now time.Time) (*tls.Certificate, error) {
	fields, err := template(title, now, authorityLife)
	if err != nil {
		return nil, err
	}
	fields.KeyUsage, fields.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	cert, err := sign(fields, fields, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// Pinned returns the TLS configuration for connecting to the machine whose key has this
// KeyFingerprint. A connection to any other machine fails with a *PinError.
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

// PinError is an ErrPin with the two fingerprints. Another machine or an attacker responds at
// the address.
type PinError struct{ Want, Found string }

// Error returns a message with both fingerprints.
func (e *PinError) Error() string {
	return fmt.Sprintf("%v: must be %s, got %s", ErrPin, e.Want, e.Found)
}

// Is makes it an ErrPin.
func (e *PinError) Is(target error) bool { return target == ErrPin }

// RootOf returns the authority with this fingerprint from a presented chain, for clients that
// only have the fingerprint of a service. Its error is ErrUntrusted.
func RootOf(chain []*x509.Certificate, owner string) (*x509.Certificate, error) {
	for _, c := range chain {
		if c.IsCA && Fingerprint(c) == owner {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%w: the presented certificate chain must contain the CA with the fingerprint %s", ErrUntrusted, owner)
}

// ToOwner returns the TLS configuration for connecting to parties of these roles of the service
// whose authority has this fingerprint, for clients without a certificate.
func ToOwner(owner string, now time.Time, roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // VerifyConnection verifies the certificate
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
