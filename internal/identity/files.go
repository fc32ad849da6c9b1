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

// Names of the files in a directory of identities. Each holds a chain with its key, in
// one file so that the two always belong together.
const (
	fileAuthority = "ca.pem"
	fileOperator  = "operator.pem"

	dirMode = 0o700
)

// Files of a controller, each a Bundle: what it is known by, and the delegated authority
// with which it certifies machines.
const (
	FileController = "controller.pem"
	FileDelegated  = "issuer.pem"
)

// PEM block types.
const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY" // PKCS #8
)

// Home is the directory in which an operator keeps what it is in a service. Changes
// are made by one process at a time: callers hold the service's lock.
type Home struct{ Dir string }

func (h Home) path(name string) string { return filepath.Join(h.Dir, name) }

// Create opens the service's authority, or makes one where there is none: two calls
// give the same.
func (h Home) Create(service string, now time.Time) (*Authority, error) {
	a, err := h.Authority()
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if _, err := os.Stat(h.path(fileOperator)); err == nil {
		return nil, fmt.Errorf("opening the certificate authority: %s has no %s: this machine's operator was enrolled by another one, whose machine alone can sign", h.Dir, fileAuthority)
	}
	if a, err = NewAuthority(service, now); err != nil {
		return nil, err
	}
	return a, h.keep(fileAuthority, a.chain, a.key)
}

// Authority opens the service's authority; an fs.ErrNotExist where it is not on this
// machine.
func (h Home) Authority() (*Authority, error) {
	chain, key, err := h.read(fileAuthority)
	if err != nil {
		return nil, fmt.Errorf("opening the certificate authority: %w", err)
	}
	service, ok := strings.CutPrefix(chain[0].Subject.CommonName, authorityTitle)
	if len(chain) != 1 || !chain[0].IsCA || !ok || !serviceForm.MatchString(service) {
		return nil, fmt.Errorf("opening the certificate authority: %s holds none", h.path(fileAuthority))
	}
	return &Authority{service: service, key: key, chain: chain}, nil
}

// Operator is the operator of this machine as a party; an fs.ErrNotExist where it is
// none. Where the authority is here, a certificate is made under the name id when
// there is none, and renewed under its own when little of it is left.
func (h Home) Operator(id string, now time.Time) (Party, error) {
	chain, key, err := h.read(fileOperator)
	if err == nil && isFresh(chain[0], now, RenewBefore) {
		return NewParty(chain, key), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Party{}, fmt.Errorf("opening the operator's certificate: %w", err)
	}
	made, e := h.certifyOperator(id, chain, now)
	if errors.Is(e, fs.ErrNotExist) && err == nil {
		return NewParty(chain, key), nil // good for as long as it is: another machine's authority made it
	}
	return made, e
}

// isFresh says whether a certificate is good now and for longer than before. One that is not
// good yet was made while this machine's clock was ahead.
func isFresh(c *x509.Certificate, now time.Time, before time.Duration) bool {
	return !now.Before(c.NotBefore) && now.Add(before).Before(c.NotAfter)
}

// certifyOperator gives the operator a new key and certificate; old, if any, says
// under which name.
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
	chain, err := a.Certify(key.Public(), n, now, Life)
	if err == nil {
		err = h.Record(chain[0])
	}
	if err != nil {
		return Party{}, err
	}
	return NewParty(chain, key), h.keep(fileOperator, chain, key)
}

// NewParty is the holder of a chain, which ends with the service's authority, and its key.
func NewParty(chain []*x509.Certificate, key crypto.Signer) Party {
	pair := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	return Party{Root: chain[len(chain)-1], Certificate: func() (*tls.Certificate, error) { return pair, nil }}
}

// KeepOperator keeps what another operator's authority signed for this machine's key.
func (h Home) KeepOperator(chain []*x509.Certificate, key crypto.Signer) error {
	if _, err := os.Stat(h.path(fileAuthority)); err == nil {
		return fmt.Errorf("keeping the operator's certificate: %s holds the service's authority itself", h.Dir)
	}
	return h.keep(fileOperator, chain, key)
}

// Delegated opens the delegated authority in FileDelegated; an fs.ErrNotExist where
// there is none.
func (h Home) Delegated() (*Authority, error) {
	chain, key, err := h.read(FileDelegated)
	if err != nil {
		return nil, fmt.Errorf("opening the delegated authority: %w", err)
	}
	return Delegated(chain, key)
}

func (h Home) keep(name string, chain []*x509.Certificate, key crypto.Signer) error {
	text, err := Bundle(chain, key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.Dir, dirMode); err != nil {
		return fmt.Errorf("keeping %s: %w", h.path(name), err)
	}
	return WriteFile(h.path(name), text)
}

// read reads a chain with its key from a file that nobody else may read.
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
		err = errors.New("the key is not that of its first certificate")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return chain, key, nil
}

// readSecret reads a file unless others may read it too.
func readSecret(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("reading %s: others may read it, its mode is %04o; run chmod 600, and make a new key if somebody did", path, mode)
	}
	return os.ReadFile(path)
}

// ReadKey reads a private key from a file that nobody else may read.
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

// parseKey reads what EncodeKey writes; certificates beside it are passed over.
func parseKey(text []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockKey {
			continue
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if signer, ok := key.(crypto.Signer); ok && err == nil {
			return signer, nil
		}
		break // the cause may quote the key
	}
	return nil, errors.New("it holds no private key in PEM that signs")
}

// Load is the party whose certificate, key and authority are in these files. The
// files are read once.
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
		return nil, fmt.Errorf("reading %s: want the certificate of one authority, found %d certificates", path, len(chain))
	}
	return chain[0], nil
}

// Bundle writes a chain with its key as PEM: the form of the files in a Home.
func Bundle(chain []*x509.Certificate, key crypto.Signer) ([]byte, error) {
	text, err := EncodeKey(key)
	return append(EncodeChain(chain), text...), err
}

// EncodeKey writes a private key as PEM.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der}), nil
}

// EncodeChain writes certificates as PEM, in their order.
func EncodeChain(chain []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, c := range chain {
		_ = pem.Encode(&text, &pem.Block{Type: blockCertificate, Bytes: c.Raw}) // memory takes everything
	}
	return text.Bytes()
}

// ParseChain reads what EncodeChain writes and passes a key beside it over; no
// certificate at all is an error.
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
		return nil, errors.New("parsing certificates: there is none")
	}
	return chain, nil
}

// WriteFile writes a file that only its owner may read, durably, whole or not at all.
func WriteFile(path string, data []byte) error { return atomicfile.WriteFile(path, data, 0o600) }
