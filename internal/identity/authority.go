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
	// authorityLife is longer than any service keeps its machines; a new authority
	// means a new service.
	authorityLife = 20 * 365 * 24 * time.Hour
	// Life is how long a certificate of a party is good: `up` and the controller renew it
	// long before, and a machine that was forgotten ends to be one of the service.
	Life = 90 * 24 * time.Hour
	// RenewBefore is how much of it may be left before it is renewed: a controller that is
	// away for weeks costs nothing.
	RenewBefore = Life * 2 / 3
	// AlertBefore is how much of it may be left before somebody is told: it was to be
	// renewed for two weeks by then.
	AlertBefore = Life / 2
	// ControllerLife is how long a controller is good without an operator: its certificate,
	// and the delegated authority with which it renews those of machines. They can be
	// revoked, and a year is what Kubernetes gives its control plane.
	ControllerLife = 365 * 24 * time.Hour
	// ControllerRenewBefore and ControllerAlertBefore are the same of these; only an
	// operator renews them, with `up`.
	ControllerRenewBefore = ControllerLife * 3 / 4
	ControllerAlertBefore = ControllerLife / 2
	// backdate lets machines whose clocks run late take a certificate at once.
	backdate = time.Hour
)

// authorityTitle stands before the service in the subject of its authority.
const authorityTitle = "skyserve "

// Authority signs the certificates of one service. It is a service's own, with its
// key at hand, or a delegated one.
type Authority struct {
	service string
	key     crypto.Signer
	chain   []*x509.Certificate // its own certificate first, the service's last
}

// NewKey makes a private key of the kind that all parties have: ECDSA on P-256.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewAuthority makes the authority of a service. Nothing is kept: see Home.
func NewAuthority(service string, now time.Time) (*Authority, error) {
	if !serviceForm.MatchString(service) {
		return nil, fmt.Errorf("making a certificate authority: service: want lower-case letters, digits and dashes, got %q", service)
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("making a certificate authority: %w", err)
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

// template is what all certificates have in common.
func template(title string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: title}, BasicConstraintsValid: true,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
	}, nil
}

// sign makes a certificate and reads it as others will.
func sign(form, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, form, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", form.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// Service is the service whose certificates it signs.
func (a *Authority) Service() string { return a.service }

// Root is the service's own authority's certificate, which everybody trusts.
func (a *Authority) Root() *x509.Certificate { return a.chain[len(a.chain)-1] }

// Owner is the fingerprint of Root: what cloud objects of the service carry.
func (a *Authority) Owner() string { return Fingerprint(a.Root()) }

// Ends is when its own certificate ends, and with it what it signed.
func (a *Authority) Ends() time.Time { return a.chain[0].NotAfter }

// Certify signs that whoever holds the private key of pub is n until life has passed. The
// chain has n's certificate first and the service's authority last.
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
	// Everybody may ask; only those that are asked may answer.
	form.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if n.Role == Balancer || n.Role == Replica || n.Role == Controller {
		form.ExtKeyUsage = append(form.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return a.issue(form, n, pub)
}

// Delegate signs that whoever holds the private key of pub may certify these roles, and no
// others, until life has passed.
func (a *Authority) Delegate(pub crypto.PublicKey, id string, roles []Role, now time.Time, life time.Duration) ([]*x509.Certificate, error) {
	n := Name{Service: a.service, Role: issuer, ID: id}
	if err := n.Check(); err != nil {
		return nil, err
	}
	if len(roles) == 0 { // no constraint would permit all
		return nil, fmt.Errorf("delegating to %s: no role is named", id)
	}
	form, err := template(string(issuer)+" "+id, now, life)
	if err != nil {
		return nil, err
	}
	form.IsCA, form.MaxPathLenZero, form.KeyUsage = true, true, x509.KeyUsageCertSign
	form.PermittedDNSDomainsCritical = true // which makes all of its constraints critical
	for _, role := range roles {
		if role == Operator || role == issuer {
			return nil, fmt.Errorf("delegating to %s: %s is for the service's own authority to certify", id, role)
		}
		form.PermittedURIDomains = append(form.PermittedURIDomains, Name{Service: a.service, Role: role}.domain())
	}
	return a.issue(form, n, pub)
}

// issue signs a certificate for a name and puts the chain under it.
func (a *Authority) issue(form *x509.Certificate, n Name, pub crypto.PublicKey) ([]*x509.Certificate, error) {
	form.URIs = []*url.URL{n.uri()}
	if end := a.chain[0].NotAfter; form.NotAfter.After(end) {
		form.NotAfter = end // nothing outlives who signed it
	}
	cert, err := sign(form, a.chain[0], pub, a.key)
	if err != nil {
		return nil, err
	}
	return append([]*x509.Certificate{cert}, a.chain...), nil
}

// Delegated is the authority of a chain that Delegate made, with its key.
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

// short writes a hash in letters and digits that labels of every cloud may hold.
var short = base32.StdEncoding.WithPadding(base32.NoPadding)

// Fingerprint is the SHA-256 of a certificate: 52 lower-case letters and digits.
func Fingerprint(c *x509.Certificate) string { return digest(c.Raw) }

// KeyFingerprint is the SHA-256 of a certificate's public key, written alike.
func KeyFingerprint(c *x509.Certificate) string { return digest(c.RawSubjectPublicKeyInfo) }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return strings.ToLower(short.EncodeToString(sum[:]))
}
