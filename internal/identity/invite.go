package identity

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Invite is an invitation for one person to become an operator of a service. Its text is a
// secret between the inviting operator and the invited person. A balancer relays their
// messages. It can neither learn the secret from them nor obtain a certificate.
type Invite struct {
	secret [16]byte
	owner  [sha256.Size]byte // the fingerprint of the service's authority
}

// NewInvite returns an invitation to the service of an authority.
func NewInvite(a *Authority) Invite {
	i := Invite{owner: sha256.Sum256(a.Root().Raw)}
	_, _ = rand.Read(i.secret[:]) // never fails, as documented
	return i
}

// Text returns the secret text of the invitation: 77 letters and digits.
func (i Invite) Text() string {
	return strings.ToLower(encoding.EncodeToString(append(i.secret[:], i.owner[:]...)))
}

// ParseInvite parses a Text, in any case and with spaces around it.
func ParseInvite(text string) (i Invite, err error) {
	data, err := encoding.DecodeString(strings.ToUpper(strings.TrimSpace(text)))
	if err != nil || len(data) != len(i.secret)+len(i.owner) {
		return i, fmt.Errorf("reading the invitation: the code must be 77 letters and digits, got %d characters; pass the whole code that 'skyserve connect URL --invite' printed", len(strings.TrimSpace(text)))
	}
	copy(i.secret[:], data)
	copy(i.owner[:], data[len(i.secret):])
	return i, nil
}

// Owner returns the fingerprint of the service's authority.
func (i Invite) Owner() string { return strings.ToLower(encoding.EncodeToString(i.owner[:])) }

// derive derives a key for one purpose from the secret.
func (i Invite) derive(purpose string, data []byte) []byte {
	mac := hmac.New(sha256.New, i.secret[:])
	mac.Write([]byte(purpose + "\x00"))
	mac.Write(data)
	return mac.Sum(nil)
}

// Mailbox returns the name of the invitation's mailbox at the relaying balancer. It does not
// reveal the secret.
func (i Invite) Mailbox() string { return hex.EncodeToString(i.derive("mailbox", nil)[:16]) }

// Request returns a certificate request for a key under the name id, and the proof that the
// requester has the invitation.
func (i Invite) Request(key crypto.Signer, id string) (csr, proof []byte, err error) {
	csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: id}}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a certificate request: %w", err)
	}
	return csr, i.derive("request", csr), nil
}

// ErrNotInvited means that the requester does not have the invitation.
var ErrNotInvited = errors.New("the request does not match the invitation")

// Accept signs the certificate of a request; ErrNotInvited if the proof is wrong.
func (i Invite) Accept(a *Authority, csr, proof []byte, now time.Time) ([]*x509.Certificate, error) {
	if !hmac.Equal(proof, i.derive("request", csr)) {
		return nil, ErrNotInvited
	}
	req, err := x509.ParseCertificateRequest(csr)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate request: %w", err)
	}
	return a.Certify(req.PublicKey, Name{Service: a.service, Role: Operator, ID: req.Subject.CommonName}, now, CertificateLife)
}

// VerifyChain verifies the response to a request for key: an operator's chain, signed by the
// authority of the invitation.
func (i Invite) VerifyChain(chain []*x509.Certificate, key crypto.Signer, now time.Time) (Name, error) {
	root, err := RootOf(chain, i.Owner())
	if err != nil {
		return Name{}, err
	}
	n, err := Verify(chain, root, now, x509.ExtKeyUsageClientAuth)
	switch {
	case err != nil:
		return Name{}, err
	case n.Role != Operator:
		return Name{}, fmt.Errorf("%w: must be an operator, got %s", ErrRole, n)
	case !sameKey(chain[0].PublicKey, key.Public()) || !chain[len(chain)-1].Equal(root):
		return Name{}, fmt.Errorf("%w: the certificate must be for the requested key, got one for another key", ErrUntrusted)
	}
	return n, nil
}
