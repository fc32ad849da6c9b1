package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Errors of a handshake; test for them with errors.Is. Only the side that found
// out has them: the other is told that its certificate is bad, and no more.
var (
	// ErrStranger is a certificate that the service's authority did not sign, or
	// that is no longer, or not yet, good.
	ErrStranger = errors.New("not of this service")
	// ErrRole is a party of the service that is of no use here.
	ErrRole = errors.New("not its business")
	// ErrAnonymous is a party that presented no certificate.
	ErrAnonymous = errors.New("no certificate was presented")
)

// Party is one end of connections: who it is, and whom it trusts.
type Party struct {
	// Root is the authority of the service.
	Root *x509.Certificate
	// Certificate gives what it presents; it is asked at every handshake, so that a
	// renewed one is used at once.
	Certificate func() (*tls.Certificate, error)
	// Revoked is asked about each certificate of the chain that the other end presents; nil =
	// none is.
	Revoked func(*x509.Certificate) bool
	// Now tells the time that certificates must be good at; nil = time.Now.
	Now func() time.Time
}

// Server is TLS for a listener that lets parties of these roles in.
func (p Party) Server(roles ...Role) *tls.Config {
	c := p.base()
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection judges it, in one way for both sides
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.Certificate() }
	c.VerifyConnection = func(s tls.ConnectionState) error { return p.admit(s, x509.ExtKeyUsageClientAuth, roles) }
	return c
}

// Open is Server for a listener that also takes connections without a certificate:
// what it serves must ask Of who is there. One that is presented must be good.
func (p Party) Open(roles ...Role) *tls.Config {
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

// Client is TLS towards servers of these roles.
func (p Party) Client(roles ...Role) *tls.Config {
	c := p.base()
	c.InsecureSkipVerify = true // VerifyConnection does it: by role, since addresses say nothing
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.Certificate() }
	c.VerifyConnection = func(s tls.ConnectionState) error { return p.admit(s, x509.ExtKeyUsageServerAuth, roles) }
	return c
}

// To is Client towards one party, by its whole name.
func (p Party) To(n Name) *tls.Config {
	c := p.Client(n.Role)
	check := c.VerifyConnection
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if err := check(s); err != nil {
			return err
		}
		if found, err := NameOf(s.PeerCertificates[0]); err != nil || found != n {
			return fmt.Errorf("%w: want %s, found %s", ErrRole, n, found)
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

// admit says whether who is at the other end is of the service and of one of roles.
func (p Party) admit(s tls.ConnectionState, usage x509.ExtKeyUsage, roles []Role) error {
	n, err := Verify(s.PeerCertificates, p.Root, p.now(), usage)
	if err != nil {
		return err
	}
	if p.Revoked != nil && slices.ContainsFunc(s.PeerCertificates, p.Revoked) {
		return fmt.Errorf("%w: %s", ErrRevoked, n)
	}
	if !slices.Contains(roles, n.Role) {
		return fmt.Errorf("%w: want one of %v, found %s", ErrRole, roles, n)
	}
	return nil
}

// Verify says whom a chain names, which root must have signed and which must be good
// now and for usage. Errors are ErrStranger and ErrAnonymous.
func Verify(chain []*x509.Certificate, root *x509.Certificate, now time.Time, usage x509.ExtKeyUsage) (Name, error) {
	if len(chain) == 0 {
		return Name{}, ErrAnonymous
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	n, err := NameOf(chain[0])
	if err == nil && chain[0].IsCA {
		err = errUnnamed // an authority signs; it does not speak
	}
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	return n, nil
}

// Of is who is at the other end of a connection that a config of a Party let in;
// ErrAnonymous when nothing was presented. s may be nil, as of a request without TLS.
func Of(s *tls.ConnectionState) (Name, error) {
	if s == nil || len(s.PeerCertificates) == 0 {
		return Name{}, ErrAnonymous
	}
	return NameOf(s.PeerCertificates[0])
}
