package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"skyserve/internal/identity"
)

// isPeerRevoked reports whether a certificate of the peer of a connection is revoked.
func (a *Agent) isPeerRevoked(s *tls.ConnectionState) bool {
	return slices.ContainsFunc(s.PeerCertificates, a.hasRevoked)
}

// hasRevoked reports whether a certificate is revoked.
func (a *Agent) hasRevoked(c *x509.Certificate) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.revoked.Has(c)
}

// setRevoked stores a revocation list, unless the machine has a newer one. Units of the machine read
// it from FileRevoked.
func (a *Agent) setRevoked(r revocation) error {
	a.changeMu.Lock()
	defer a.changeMu.Unlock()
	party := a.currentCredentials()
	if party == nil {
		return conflictError{errNotEnrolled}
	}
	list, err := identity.ParseRevoked([]byte(r.List), party.Root)
	if err == nil && list.Number() == 0 {
		err = errors.New("reading the revocation list: the list is empty")
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	err = list.After(a.revoked)
	a.mu.Unlock()
	if err != nil {
		return conflictError{fmt.Errorf("storing revocation list %d: %w", list.Number(), err)}
	}
	if err := identity.WriteFile(a.path(FileRevoked), list.Text()); err != nil {
		return err
	}
	a.mu.Lock()
	a.revoked = list
	a.mu.Unlock()
	a.log.Info("revocation list installed", "list", list.Number(), "certificates", list.Len())
	return nil
}
