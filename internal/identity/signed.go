package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// Signed is a text with the signature of a party of a service, and its certificates.
type Signed struct {
	Text []byte `json:"text"`
	// Chain contains the party's certificate and those of its authorities, in PEM.
	Chain string `json:"chain"`
	// Signature is of a hash of the purpose and the text, as ECDSA in ASN.1.
	Signature []byte `json:"signature"`
}

// errSignature is the error of a text that was changed, or signed by another key.
var errSignature = errors.New("the signature does not match the text")

// Sign signs a text. A text that was signed for one purpose is not valid for another.
func (p Party) Sign(purpose string, text []byte) (Signed, error) {
	pair, err := p.Certificate()
	if err != nil {
		return Signed{}, fmt.Errorf("signing %s: %w", purpose, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return Signed{}, fmt.Errorf("signing %s: the key of the certificate cannot sign", purpose)
	}
	var chain []*x509.Certificate
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return Signed{}, fmt.Errorf("signing %s: %w", purpose, err)
		}
		chain = append(chain, c)
	}
	signature, err := key.Sign(rand.Reader, hashForPurpose(purpose, text), crypto.SHA256)
	if err != nil {
		return Signed{}, fmt.Errorf("signing %s: %w", purpose, err)
	}
	return Signed{Text: text, Chain: string(EncodeChain(chain)), Signature: signature}, nil
}

// OpenSigned returns the text that a party with one of these roles signed for a purpose. The party must have a
// valid certificate of the same service now. Errors include ErrUntrusted, ErrRevoked and ErrRole.
func (p Party) OpenSigned(s Signed, purpose string, roles ...Role) ([]byte, error) {
	text, err := p.openSigned(s, purpose, roles)
	if err != nil {
		return nil, fmt.Errorf("verifying the signature of %s: %w", purpose, err)
	}
	return text, nil
}

func (p Party) openSigned(s Signed, purpose string, roles []Role) ([]byte, error) {
	chain, err := ParseChain([]byte(s.Chain))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	n, err := Verify(chain, p.Root, p.now(), x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	key, ok := chain[0].PublicKey.(*ecdsa.PublicKey)
	switch {
	case p.Revoked != nil && slices.ContainsFunc(chain, p.Revoked):
		return nil, fmt.Errorf("%w: %s", ErrRevoked, n)
	case !slices.Contains(roles, n.Role):
		return nil, fmt.Errorf("%w: must be one of %v, got %s", ErrRole, roles, n)
	case !ok || !ecdsa.VerifyASN1(key, hashForPurpose(purpose, s.Text), s.Signature):
		return nil, fmt.Errorf("%w: %w", ErrUntrusted, errSignature)
	}
	return s.Text, nil
}

// hashForPurpose returns the SHA-256 of a purpose and a text, separated by a byte that no purpose contains.
func hashForPurpose(purpose string, text []byte) []byte {
	h := sha256.New()
	h.Write(append([]byte(purpose), 0))
	h.Write(text)
	return h.Sum(nil)
}
