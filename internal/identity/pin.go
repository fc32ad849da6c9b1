package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ErrPin is a machine that shows another key than the one it was told to have.
var ErrPin = errors.New("another key than the one that was told")

// SelfSigned is a certificate that says nothing but that its holder has key: what a
// machine shows until it has one of the service.
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

// Pinned is TLS towards the one machine whose key has this KeyFingerprint; *PinError
// for any other.
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

// PinError is an ErrPin with the two fingerprints: somebody else answers at that
// address, or in between.
type PinError struct{ Want, Found string }

// Error names both.
func (e *PinError) Error() string {
	return fmt.Sprintf("%v: want %s, found %s", ErrPin, e.Want, e.Found)
}

// Is makes it an ErrPin.
func (e *PinError) Is(target error) bool { return target == ErrPin }

// RootOf finds the authority with this fingerprint in what a party presented, which
// is how somebody who knows no more of a service than that judges the party. Its
// error is ErrStranger.
func RootOf(chain []*x509.Certificate, owner string) (*x509.Certificate, error) {
	for _, c := range chain {
		if c.IsCA && Fingerprint(c) == owner {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%w: no authority with the fingerprint %s was presented", ErrStranger, owner)
}

// ToOwner is TLS towards parties of these roles of the service with this
// fingerprint, for somebody who has no certificate of it.
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
