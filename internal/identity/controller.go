package identity

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// ControllersID is the ID of the certificate that the controllers of a service share, and of their delegated authority.
// Earlier versions used the ID of a balancer.
const ControllersID = "controllers"

// Controller returns the credentials that the controllers of a service share, each as a Bundle: a
// certificate, and a delegated authority that certifies balancers and replicas. Later calls return the same credentials, until less than ControllerRenewBefore
// remains or they are revoked: then they are renewed. Both are recorded before they are
// returned. It fails with fs.ErrNotExist if the service's authority is not on this machine.
func (h Home) Controller(now time.Time) (own, issuer []byte, err error) {
	a, err := h.Authority()
	if err != nil {
		return nil, nil, err
	}
	name := Name{Service: a.service, Role: Controller, ID: ControllersID}
	own, err = h.bundle(FileController, now, func(pub crypto.PublicKey) ([]*x509.Certificate, error) {
		return a.Certify(pub, name, now, ControllerLife)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("certifying the controllers: %w", err)
	}
	issuer, err = h.bundle(FileDelegated, now, func(pub crypto.PublicKey) ([]*x509.Certificate, error) {
		return a.Delegate(pub, ControllersID, []Role{Balancer, Replica}, now, ControllerLife)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("delegating to the controllers: %w", err)
	}
	return own, issuer, nil
}

// ReadController returns the party of the stored controller certificate, and its delegated
// authority.
func (h Home) ReadController() (Party, *Authority, error) {
	chain, key, err := h.read(FileController)
	if err != nil {
		return Party{}, nil, fmt.Errorf("opening the controller's certificate: %w", err)
	}
	a, err := h.Delegated()
	return NewParty(chain, key), a, err
}

// bundle returns the content of a file. If its certificate is missing, revoked or expires soon,
// bundle stores and returns a new key with the chain that certify signs for it.
func (h Home) bundle(file string, now time.Time, certify func(crypto.PublicKey) ([]*x509.Certificate, error)) ([]byte, error) {
	revoked, err := h.Revoked()
	if err != nil {
		return nil, err
	}
	chain, key, err := h.read(file)
	if err == nil {
		err = h.Record(chain[0]) // earlier versions did not record certificates
	}
	switch {
	case err == nil && isFresh(chain[0], now, ControllerRenewBefore) && !revoked.Has(chain[0]):
		return Bundle(chain, key)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	newKey, err := NewKey()
	if err != nil {
		return nil, err
	}
	if chain, err = certify(newKey.Public()); err != nil {
		return nil, err
	}
	if err := errors.Join(h.Record(chain[0]), h.writeBundle(file, chain, newKey)); err != nil {
		return nil, err
	}
	return Bundle(chain, newKey)
}
