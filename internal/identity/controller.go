package identity

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Controller gives what a service's controller is handed, each as a Bundle: the
// certificate that it is known by under the name id, and a delegated authority that
// certifies balancers and replicas. Both are kept, so that two calls give the same, and
// made anew when less than ControllerRenewBefore of them is left, or they are revoked. Both
// are recorded before they are handed out. It is an fs.ErrNotExist where the service's
// authority is not on this machine.
func (h Home) Controller(id string, now time.Time) (own, issuer []byte, err error) {
	a, err := h.Authority()
	if err != nil {
		return nil, nil, err
	}
	name := Name{Service: a.service, Role: Controller, ID: id}
	own, err = h.bundle(FileController, now, func(pub crypto.PublicKey) ([]*x509.Certificate, error) {
		return a.Certify(pub, name, now, ControllerLife)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("certifying the controller: %w", err)
	}
	issuer, err = h.bundle(FileDelegated, now, func(pub crypto.PublicKey) ([]*x509.Certificate, error) {
		return a.Delegate(pub, id, []Role{Balancer, Replica}, now, ControllerLife)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("delegating to the controller: %w", err)
	}
	return own, issuer, nil
}

// ReadController is who holds what Controller handed out, with the authority that it certifies
// machines with.
func (h Home) ReadController() (Party, *Authority, error) {
	chain, key, err := h.read(FileController)
	if err != nil {
		return Party{}, nil, fmt.Errorf("opening the controller's certificate: %w", err)
	}
	a, err := h.Delegated()
	return NewParty(chain, key), a, err
}

// bundle is what a file holds where it is good for long enough, else a new key with the
// chain that certify makes for it.
func (h Home) bundle(file string, now time.Time, certify func(crypto.PublicKey) ([]*x509.Certificate, error)) ([]byte, error) {
	revoked, err := h.Revoked()
	if err != nil {
		return nil, err
	}
	chain, key, err := h.read(file)
	if err == nil {
		err = h.Record(chain[0]) // one that was made before they were recorded
	}
	switch {
	case err == nil && isFresh(chain[0], now, ControllerRenewBefore) && !revoked.Has(chain[0]):
		return Bundle(chain, key)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	made, err := NewKey()
	if err != nil {
		return nil, err
	}
	if chain, err = certify(made.Public()); err != nil {
		return nil, err
	}
	if err := errors.Join(h.Record(chain[0]), h.keep(file, chain, made)); err != nil {
		return nil, err
	}
	return Bundle(chain, made)
}
