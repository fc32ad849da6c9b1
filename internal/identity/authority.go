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
	// authorityLife exceeds the lifetime of any service: an authority cannot be replaced
	// without a new service.
	authorityLife = 20 * 365 * 24 * time.Hour
	// CertificateLife is the lifetime of a party's certificate. `up` and the controller renew it
	// long before it expires; a forgotten machine loses its access.
	CertificateLife = 90 * 24 * time.Hour
	// RenewBefore is the remaining lifetime at which a party's certificate is renewed. The
	// controller can be down for weeks before a certificate expires.
	RenewBefore = CertificateLife * 2 / 3
	// AlertBefore is the remaining lifetime at which an alert fires: the renewal is then two
	// weeks overdue.
	AlertBefore = CertificateLife / 2
	// ControllerLife is the lifetime of a controller's certificate and of its delegated
	// authority: how long a controller works without an operator. Both can be revoked. A year is
	// also the lifetime of certificates of a Kubernetes control plane.
	ControllerLife = 365 * 24 * time.Hour
	// ControllerRenewBefore and ControllerAlertBefore are RenewBefore and AlertBefore for these
	// two. Only an operator renews them, with `up`.
	ControllerRenewBefore = ControllerLife * 3 / 4
	ControllerAlertBefore = ControllerLife / 2
	// backdate is how long before its creation a certificate is valid, for machines whose clocks
	// are behind.
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

// NewAuthority creates the authority of a service. It does not store the authority: see Home.
func NewAuthority(service string, now time.Time) (*Authority, error) {
	if !isServiceName(service) {
		return nil, fmt.Errorf("creating a certificate authority: the service must be lower-case letters, digits and dashes, got %q", service)
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("creating a certificate authority: %w", err)
	}
	fields, err := template(authorityTitle+service, now, authorityLife)
	if err != nil {
		return nil, err
	}
	fields.IsCA, fields.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	cert, err := sign(fields, fields, &key.PublicKey, key)
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
func sign(fields, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, fields, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", fields.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// Service returns the service whose certificates it signs.
func (a *Authority) Service() string { return a.service }

// Root returns the certificate of the service's own authority, which all parties trust.
func (a *Authority) Root() *x509.Certificate { return a.chain[len(a.chain)-1] }

// Owner returns the fingerprint of Root, which labels the service's cloud objects.
func (a *Authority) Owner() string { return Fingerprint(a.Root()) }

// Expires returns when the authority's own certificate expires. No certificate that it signed is
// valid longer.
func (a *Authority) Expires() time.Time { return a.chain[0].NotAfter }

// Certify signs a certificate of n for pub with the given lifetime. The chain starts with n's
// certificate and ends with the service's authority.
func (a *Authority) Certify(pub crypto.PublicKey, n Name, now time.Time, life time.Duration) ([]*x509.Certificate, error) {
	if err := n.Check(); err != nil {
		return nil, err
	}
	if n.Service != a.service || n.Role == issuer {
		return nil, fmt.Errorf("certifying %s: the party must be of service %s, and not a delegated authority", n, a.service)
	}
	fields, err := template(string(n.Role)+" "+n.ID, now, life)
	if err != nil {
		return nil, err
	}
	fields.KeyUsage = x509.KeyUsageDigitalSignature
	// Every certificate permits client authentication; only these three roles are servers, too.
	fields.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if n.Role == Balancer || n.Role == Replica || n.Role == Controller {
		fields.ExtKeyUsage = append(fields.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return a.issue(fields, n, pub)
}

// Delegate signs a delegated authority for pub with the given lifetime, which may certify only
// these roles.
func (a *Authority) Delegate(pub crypto.PublicKey, id string, roles []Role, now time.Time, life time.Duration) ([]*x509.Certificate, error) {
	n := Name{Service: a.service, Role: issuer, ID: id}
	if err := n.Check(); err != nil {
		return nil, err
	}
	if len(roles) == 0 { // a certificate without constraints would permit all roles
		return nil, fmt.Errorf("delegating to %s: at least one role is required", id)
	}
	fields, err := template(string(issuer)+" "+id, now, life)
	if err != nil {
		return nil, err
	}
	fields.IsCA, fields.MaxPathLenZero, fields.KeyUsage = true, true, x509.KeyUsageCertSign
	fields.PermittedDNSDomainsCritical = true // makes all name constraints critical
	for _, role := range roles {
		if role == Operator || role == issuer {
			return nil, fmt.Errorf("delegating to %s: the roles must be replica, balancer or controller, got %s", id, role)
		}
		fields.PermittedURIDomains = append(fields.PermittedURIDomains, Name{Service: a.service, Role: role}.domain())
	}
	return a.issue(fields, n, pub)
}

// issue signs a certificate for a name and returns its chain.
func (a *Authority) issue(fields *x509.Certificate, n Name, pub crypto.PublicKey) ([]*x509.Certificate, error) {
	fields.URIs = []*url.URL{n.uri()}
	if end := a.chain[0].NotAfter; fields.NotAfter.After(end) {
		fields.NotAfter = end // no certificate outlives its signer
	}
	cert, err := sign(fields, a.chain[0], pub, a.key)
	if err != nil {
		return nil, err
	}
	return append([]*x509.Certificate{cert}, a.chain...), nil
}

// Delegated returns the authority of a chain signed by Delegate, and its key.
func Delegated(chain []*x509.Certificate, key crypto.Signer) (*Authority, error) {
	if len(chain) < 2 {
		return nil, errors.New("use a delegated authority: its certificate chain must have at least two certificates")
	}
	n, err := NameOf(chain[0])
	switch {
	case err != nil:
		return nil, fmt.Errorf("use a delegated authority: %w", err)
	case n.Role != issuer:
		return nil, fmt.Errorf("use a delegated authority: the role must be issuer, got %s", n)
	case !sameKey(chain[0].PublicKey, key.Public()):
		return nil, fmt.Errorf("use a delegated authority: the key must be that of %s, got another one", n)
	}
	return &Authority{service: n.Service, key: key, chain: chain}, nil
}

func sameKey(a, b crypto.PublicKey) bool {
	known, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && known.Equal(b)
}

// encoding encodes a hash in characters that the labels of every cloud permit.
var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// Fingerprint returns the SHA-256 of a certificate: 52 lower-case letters and digits.
func Fingerprint(c *x509.Certificate) string { return digest(c.Raw) }

// KeyFingerprint returns the SHA-256 of a certificate's public key, in the same format.
func KeyFingerprint(c *x509.Certificate) string { return digest(c.RawSubjectPublicKeyInfo) }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return strings.ToLower(encoding.EncodeToString(sum[:]))
}
