package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"
)

// Lifetimes, each with its reason.
const (
	// authorityLife exceeds the life of any service; a new authority means a new service.
	authorityLife = 20 * 365 * 24 * time.Hour
	// CertificateLife is the lifetime of a party's certificate: `up` and the controller renew it long
	// before its end, and a forgotten machine loses access.
	CertificateLife = 90 * 24 * time.Hour
	// RenewBefore is the remaining lifetime at which it is renewed: the controller may be
	// down for weeks without effect.
	RenewBefore = CertificateLife * 2 / 3
	// AlertBefore is the remaining lifetime at which an alert is raised: by then the renewal
	// has been due for two weeks.
	AlertBefore = CertificateLife / 2
	// ControllerLife is how long a controller works without an operator: the lifetime of its
	// certificate and of its delegated authority. They can be revoked; a year is also the
	// lifetime in a Kubernetes control plane.
	ControllerLife = 365 * 24 * time.Hour
	// ControllerRenewBefore and ControllerAlertBefore are the same for these; only an
	// operator renews them, with `up`.
	ControllerRenewBefore = ControllerLife * 3 / 4
	ControllerAlertBefore = ControllerLife / 2
	// backdate makes new certificates valid on machines whose clocks are behind.
	backdate = time.Hour
)

// authorityTitle precedes the service in the subject of its authority.
const authorityTitle = "skyserve "

// Authority signs the certificates of one service. It is the service's own authority or a
// delegated one.
type Authority struct {
	service string
	key     crypto.Signer
	chain   []*x509.Certificate // its own certificate first, the service's last
}

// NewKey generates a private key of the type that all parties use: ECDSA on P-256.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewAuthority creates the authority of a service. It stores nothing: see Home.
func NewAuthority(service string, now time.Time) (*Authority, error) {
	if !serviceForm.MatchString(service) {
		return nil, fmt.Errorf("creating a certificate authority: service: want lower-case letters, digits and dashes, got %q", service)
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("creating a certificate authority: %w", err)
	}
	form, err := template(authorityTitle+service, now, authorityLife)
	if err != nil {
		return nil, err
	}
	form.IsCA, form.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	cert, err := sign(form, form, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &Authority{service: service, key: key, chain: []*x509.Certificate{cert}}, nil
}

// template returns the fields that all certificates have in common.
func template(title string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generating a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: title}, BasicConstraintsValid: true,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
	}, nil
}

// sign creates a certificate and parses it.
func sign(form, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, form, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", form.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// Service returns the service whose certificates it signs.
func (a *Authority) Service() string { return a.service }

// Root returns the certificate of the service's own authority, which all parties trust.
func (a *Authority) Root() *x509.Certificate { return a.chain[len(a.chain)-1] }

// Owner returns the fingerprint of Root, which labels the service's cloud objects.
func (a *Authority) Owner() string { return Fingerprint(a.Root()) }

// Expires returns when its own certificate expires, and with it everything that it signed.
func (a *Authority) Expires() time.Time { return a.chain[0].NotAfter }

// Certify signs a certificate of n for pub with the given lifetime. The chain starts with n's
// certificate and ends with the service's authority.
func (a *Authority) Certify(pub crypto.PublicKey, n Name, now time.Time, life time.Duration) ([]*x509.Certificate, error) {
	if err := n.Check(); err != nil {
		return nil, err
	}
	if n.Service != a.service || n.Role == issuer {
		return nil, fmt.Errorf("certifying %s: this is the authority for the parties of %s", n, a.service)
	}
	form, err := template(string(n.Role)+" "+n.ID, now, life)
	if err != nil {
		return nil, err
	}
	form.KeyUsage = x509.KeyUsageDigitalSignature
	// Every role is a client; only these roles are servers.
	form.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if n.Role == Balancer || n.Role == Replica || n.Role == Controller {
		form.ExtKeyUsage = append(form.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return a.issue(form, n, pub)
}

// Delegate signs a delegated authority for pub with the given lifetime, which may certify only
// these roles.
func (a *Authority) Delegate(pub crypto.PublicKey, id string, roles []Role, now time.Time, life time.Duration) ([]*x509.Certificate, error) {
	n := Name{Service: a.service, Role: issuer, ID: id}
	if err := n.Check(); err != nil {
		return nil, err
	}
	if len(roles) == 0 { // without a constraint all roles would be permitted
		return nil, fmt.Errorf("delegating to %s: no role is named", id)
	}
	form, err := template(string(issuer)+" "+id, now, life)
	if err != nil {
		return nil, err
	}
	form.IsCA, form.MaxPathLenZero, form.KeyUsage = true, true, x509.KeyUsageCertSign
	form.PermittedDNSDomainsCritical = true // makes all of its constraints critical
	for _, role := range roles {
		if role == Operator || role == issuer {
			return nil, fmt.Errorf("delegating to %s: only the service's own authority may certify role %s", id, role)
		}
		form.PermittedURIDomains = append(form.PermittedURIDomains, Name{Service: a.service, Role: role}.domain())
	}
	return a.issue(form, n, pub)
}

// issue signs a certificate for a name and returns its chain.
func (a *Authority) issue(form *x509.Certificate, n Name, pub crypto.PublicKey) ([]*x509.Certificate, error) {
	form.URIs = []*url.URL{n.uri()}
	if end := a.chain[0].NotAfter; form.NotAfter.After(end) {
		form.NotAfter = end // no certificate outlives its signer
	}
	cert, err := sign(form, a.chain[0], pub, a.key)
	if err != nil {
		return nil, err
	}
	return append([]*x509.Certificate{cert}, a.chain...), nil
}

// Delegated returns the authority of a chain signed by Delegate, and its key.
func Delegated(chain []*x509.Certificate, key crypto.Signer) (*Authority, error) {
	if len(chain) < 2 {
		return nil, errors.New("using a delegated authority: its chain is not complete")
	}
	n, err := NameOf(chain[0])
	switch {
	case err != nil:
		return nil, fmt.Errorf("using a delegated authority: %w", err)
	case n.Role != issuer:
		return nil, fmt.Errorf("using a delegated authority: %s is none", n)
	case !sameKey(chain[0].PublicKey, key.Public()):
		return nil, fmt.Errorf("using a delegated authority: the key is not that of %s", n)
	}
	return &Authority{service: n.Service, key: key, chain: chain}, nil
}

func sameKey(a, b crypto.PublicKey) bool {
	known, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && known.Equal(b)
}

// encoding encodes a hash in characters that labels of every cloud allow.
var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// Fingerprint returns the SHA-256 of a certificate: 52 lower-case letters and digits.
func Fingerprint(c *x509.Certificate) string { return digest(c.Raw) }

// KeyFingerprint returns the SHA-256 of a certificate's public key, in the same format.
func KeyFingerprint(c *x509.Certificate) string { return digest(c.RawSubjectPublicKeyInfo) }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return strings.ToLower(encoding.EncodeToString(sum[:]))
}
