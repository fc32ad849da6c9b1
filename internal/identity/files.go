package identity

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"skyserve/internal/atomicfile"
)

// Names of the files in a Home. Each contains a chain and its key: in one file they always
// match.
const (
	fileAuthority = "ca.pem"
	fileOperator  = "operator.pem"

	dirMode = 0o700
)

// Files of a controller, each a Bundle: its certificate, and the delegated authority with
// which it certifies machines.
const (
	FileController = "controller.pem"
	FileDelegated  = "issuer.pem"
)

// PEM block types.
const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY" // PKCS #8
)

// Home is the directory of an operator's keys and certificates of a service. Callers that
// change it must hold the service's lock.
type Home struct{ Dir string }

func (h Home) path(name string) string { return filepath.Join(h.Dir, name) }

// Delete deletes the directory, the operator's certificate first. If it remained without the authority after an
// interruption, this machine would look like that of an invited operator, and the deletion could not be repeated.
func (h Home) Delete() error {
	err := os.Remove(h.path(fileOperator))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(h.Dir)
	}
	if err != nil {
		return fmt.Errorf("deleting the operator's keys: %w", err)
	}
	return nil
}

// Create opens the service's authority, or creates it if there is none. It is idempotent.
func (h Home) Create(service string, now time.Time) (*Authority, error) {
	a, err := h.Authority()
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if _, err := os.Stat(h.path(fileOperator)); err == nil {
		return nil, fmt.Errorf("opening the certificate authority: %s has no %s: another operator invited the operator of this machine; run this on the machine from which the service was deployed", h.Dir, fileAuthority)
	}
	if a, err = NewAuthority(service, now); err != nil {
		return nil, err
	}
	return a, h.writeBundle(fileAuthority, a.chain, a.key)
}

// Authority opens the service's authority; fs.ErrNotExist if it is not on this machine.
func (h Home) Authority() (*Authority, error) {
	chain, key, err := h.read(fileAuthority)
	if err != nil {
		return nil, fmt.Errorf("opening the certificate authority: %w", err)
	}
	service, ok := strings.CutPrefix(chain[0].Subject.CommonName, authorityTitle)
	if len(chain) != 1 || !chain[0].IsCA || !ok || !isServiceName(service) {
		return nil, fmt.Errorf("opening the certificate authority: %s must contain one CA certificate of a service and its key", h.path(fileAuthority))
	}
	return &Authority{service: service, key: key, chain: chain}, nil
}

// OperatorParty returns the operator of this machine as a party; fs.ErrNotExist if there is
// none. If the authority is on this machine, OperatorParty creates a missing certificate under
// the name id, and renews an expiring one under its own name.
func (h Home) OperatorParty(id string, now time.Time) (Party, error) {
	chain, key, err := h.read(fileOperator)
	if err == nil && isFresh(chain[0], now, RenewBefore) {
		return NewParty(chain, key), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Party{}, fmt.Errorf("opening the operator's certificate: %w", err)
	}
	renewed, e := h.certifyOperator(id, chain, now)
	if errors.Is(e, fs.ErrNotExist) && err == nil {
		return NewParty(chain, key), nil // only the machine with the authority can renew it
	}
	return renewed, e
}

// isFresh reports whether a certificate is valid now, and for longer than margin from now.
// A certificate that is not valid yet was created while this machine's clock was ahead.
func isFresh(c *x509.Certificate, now time.Time, margin time.Duration) bool {
	return !now.Before(c.NotBefore) && now.Add(margin).Before(c.NotAfter)
}

// certifyOperator creates a new key and certificate for the operator, under the name in old if
// there is an old certificate, else under the name id.
func (h Home) certifyOperator(id string, old []*x509.Certificate, now time.Time) (Party, error) {
	a, err := h.Authority()
	if err != nil {
		return Party{}, err
	}
	n := Name{Service: a.service, Role: Operator, ID: id}
	if len(old) > 0 {
		if n, err = NameOf(old[0]); err != nil {
			return Party{}, fmt.Errorf("renewing the operator's certificate: %w", err)
		}
	}
	key, err := NewKey()
	if err != nil {
		return Party{}, err
	}
	chain, err := a.Certify(key.Public(), n, now, CertificateLife)
	if err == nil {
		err = h.Record(chain[0])
	}
	if err != nil {
		return Party{}, err
	}
	return NewParty(chain, key), h.writeBundle(fileOperator, chain, key)
}

// NewParty returns the party with a chain, which ends with the service's authority, and its
// key.
func NewParty(chain []*x509.Certificate, key crypto.Signer) Party {
	pair := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	return Party{Root: chain[len(chain)-1], Certificate: func() (*tls.Certificate, error) { return pair, nil }}
}

// KeepOperator stores the chain that another machine's authority signed for this operator's
// key.
func (h Home) KeepOperator(chain []*x509.Certificate, key crypto.Signer) error {
	if _, err := os.Stat(h.path(fileAuthority)); err == nil {
		return fmt.Errorf("storing the operator's certificate: %s contains the service's certificate authority: its operator needs no invitation", h.Dir)
	}
	return h.writeBundle(fileOperator, chain, key)
}

// Delegated opens the delegated authority in FileDelegated; fs.ErrNotExist if there is none.
func (h Home) Delegated() (*Authority, error) {
	chain, key, err := h.read(FileDelegated)
	if err != nil {
		return nil, fmt.Errorf("opening the delegated authority: %w", err)
	}
	return Delegated(chain, key)
}

func (h Home) writeBundle(name string, chain []*x509.Certificate, key crypto.Signer) error {
	text, err := Bundle(chain, key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.Dir, dirMode); err != nil {
		return fmt.Errorf("storing %s: %w", h.path(name), err)
	}
	return WriteFile(h.path(name), text)
}

// read reads a chain and its key from a file that no other user may read.
func (h Home) read(name string) ([]*x509.Certificate, crypto.Signer, error) {
	path := h.path(name)
	text, err := readSecret(path)
	if err != nil {
		return nil, nil, err
	}
	chain, err := ParseChain(text)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", path, err)
	}
	key, err := parseKey(text)
	if err == nil && !sameKey(chain[0].PublicKey, key.Public()) {
		err = errors.New("the key must be that of the first certificate, got another one")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return chain, key, nil
}

// readSecret reads a file; it fails if other users may read it.
func readSecret(path string) ([]byte, error) {
	if err := CheckMode(path); err != nil {
		return nil, fmt.Errorf("reading %w", err)
	}
	return os.ReadFile(path)
}

// CheckMode returns an error if other users may read or write a file with a secret.
func CheckMode(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s: other users can read it (mode %04o); run 'chmod 600 %[1]s', and replace the key if others may have read it", path, mode)
	}
	return nil
}

// ReadKey reads a private key from a file that no other user may read.
func ReadKey(path string) (crypto.Signer, error) {
	text, err := readSecret(path)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return key, nil
}

// parseKey parses the output of EncodeKey and skips certificates.
func parseKey(text []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockKey {
			continue
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if signer, ok := key.(crypto.Signer); ok && err == nil {
			return signer, nil
		}
		break // the parser's error may contain the key
	}
	return nil, errors.New("the file must contain a PEM private key for signing, got none")
}

// Load returns the party whose certificate, key and authority are in these files. It reads the
// files once.
func Load(cert, key, root string) (Party, error) {
	authority, err := ReadRoot(root)
	if err != nil {
		return Party{}, err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return Party{}, fmt.Errorf("reading %s: %w", cert, err)
	}
	return Party{Root: authority, Certificate: func() (*tls.Certificate, error) { return &pair, nil }}, nil
}

// ReadRoot reads the certificate of a service's authority.
func ReadRoot(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	chain, err := ParseChain(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(chain) != 1 || !chain[0].IsCA {
		return nil, fmt.Errorf("reading %s: the file must contain one CA certificate, got %d certificates", path, len(chain))
	}
	return chain[0], nil
}

// Bundle encodes a chain and its key as PEM: the format of the files in a Home.
func Bundle(chain []*x509.Certificate, key crypto.Signer) ([]byte, error) {
	text, err := EncodeKey(key)
	return append(EncodeChain(chain), text...), err
}

// EncodeKey encodes a private key as PEM.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der}), nil
}

// EncodeChain encodes certificates as PEM, in their order.
func EncodeChain(chain []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, c := range chain {
		_ = pem.Encode(&text, &pem.Block{Type: blockCertificate, Bytes: c.Raw}) // writing to memory cannot fail
	}
	return text.Bytes()
}

// ParseChain parses the output of EncodeChain and skips keys; it fails if there is no
// certificate.
func ParseChain(text []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockCertificate {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parsing certificates: %w", err)
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, errors.New("parsing certificates: the file must contain a PEM certificate, got none")
	}
	return chain, nil
}

// WriteFile writes a file atomically and durably. Only its owner can read it.
func WriteFile(path string, data []byte) error { return atomicfile.WriteFile(path, data, 0o600) }
