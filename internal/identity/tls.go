package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Errors of a handshake, to test with errors.Is. Only the verifying side returns them: the
// other side receives a TLS alert.
var (
	// ErrUntrusted means that the certificate is not signed by the service's authority, has
	// expired, or is not valid yet.
	ErrUntrusted = errors.New("not trusted by this service")
	// ErrRole means that the party has a role that is not accepted.
	ErrRole = errors.New("role not permitted")
	// ErrAnonymous means that the party presented no certificate.
	ErrAnonymous = errors.New("no certificate presented")
)

// Party is one end of TLS connections: its certificate, and the authority that it trusts.
type Party struct {
	// Root is the authority of the service.
	Root *x509.Certificate
	// Certificate returns the certificate to present; it is called at every handshake, so
	// that a renewed certificate is used at once.
	Certificate func() (*tls.Certificate, error)
	// Revoked reports whether a certificate of the peer's chain is revoked; nil = none is.
	Revoked func(*x509.Certificate) bool
	// Now returns the time for the verification of certificates; nil = time.Now.
	Now func() time.Time
}

// Server returns the TLS configuration of a listener that accepts parties of these roles.
func (p Party) Server(roles ...Role) *tls.Config {
	c := p.base()
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection verifies it, as in Client
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.Certificate() }
	c.VerifyConnection = func(s tls.ConnectionState) error { return p.admit(s, x509.ExtKeyUsageClientAuth, roles) }
	return c
}

// ServerAllowingAnonymous is like Server, but also accepts connections without a certificate:
// handlers must identify the peer with PeerName. A presented certificate must be valid.
func (p Party) ServerAllowingAnonymous(roles ...Role) *tls.Config {
	c := p.Server(roles...)
	c.ClientAuth = tls.RequestClientCert
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return nil
		}
		return p.admit(s, x509.ExtKeyUsageClientAuth, roles)
	}
	return c
}

// Client returns the TLS configuration for connecting to servers of these roles.
func (p Party) Client(roles ...Role) *tls.Config {
	c := p.base()
	c.InsecureSkipVerify = true // VerifyConnection verifies the role instead of the address
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.Certificate() }
	c.VerifyConnection = func(s tls.ConnectionState) error { return p.admit(s, x509.ExtKeyUsageServerAuth, roles) }
	return c
}

// To is like Client for a single party, by its full name.
func (p Party) To(n Name) *tls.Config {
	c := p.Client(n.Role)
	check := c.VerifyConnection
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if err := check(s); err != nil {
			return err
		}
		if found, err := NameOf(s.PeerCertificates[0]); err != nil || found != n {
			return fmt.Errorf("%w: must be %s, got %s", ErrRole, n, found)
		}
		return nil
	}
	return c
}

func (p Party) base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Time: p.Now}
}

func (p Party) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}
	return p.Now()
}

// admit verifies that the peer belongs to the service and has one of roles.
func (p Party) admit(s tls.ConnectionState, usage x509.ExtKeyUsage, roles []Role) error {
	n, err := Verify(s.PeerCertificates, p.Root, p.now(), usage)
	if err != nil {
		return err
	}
	if p.Revoked != nil && slices.ContainsFunc(s.PeerCertificates, p.Revoked) {
		return fmt.Errorf("%w: %s", ErrRevoked, n)
	}
	if !slices.Contains(roles, n.Role) {
		return fmt.Errorf("%w: must be one of %v, got %s", ErrRole, roles, n)
	}
	return nil
}

// Verify returns the name in a chain that is signed by root and valid now and for usage.
// Errors are ErrUntrusted and ErrAnonymous.
func Verify(chain []*x509.Certificate, root *x509.Certificate, now time.Time, usage x509.ExtKeyUsage) (Name, error) {
	if len(chain) == 0 {
		return Name{}, ErrAnonymous
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	n, err := NameOf(chain[0])
	if err == nil && chain[0].IsCA {
		err = errUnnamed // an authority is not a party
	}
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return n, nil
}

// PeerName returns the name of the peer of a connection that a Party accepted; ErrAnonymous if it
// presented no certificate. s may be nil, as for a request without TLS.
func PeerName(s *tls.ConnectionState) (Name, error) {
	if s == nil || len(s.PeerCertificates) == 0 {
		return Name{}, ErrAnonymous
	}
	return NameOf(s.PeerCertificates[0])
}
