package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"skyserve/internal/identity"
)

// isPeerRevoked says whether who is at the other end of a connection counts no more.
func (a *Agent) isPeerRevoked(s *tls.ConnectionState) bool {
	return slices.ContainsFunc(s.PeerCertificates, a.hasRevoked)
}

// hasRevoked says whether a certificate was taken back.
func (a *Agent) hasRevoked(c *x509.Certificate) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.revoked.Has(c)
}

// setRevoked takes a list of revoked certificates, unless it has a newer one. The units of
// the machine read it from FileRevoked.
func (a *Agent) setRevoked(r revocation) error {
	a.operatorMu.Lock()
	defer a.operatorMu.Unlock()
	party := a.enrolled()
	if party == nil {
		return conflict{errNotEnrolled}
	}
	list, err := identity.ParseRevoked([]byte(r.List), party.Root)
	if err == nil && list.Number() == 0 {
		err = errors.New("reading the list of revoked certificates: it is empty")
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	err = list.After(a.revoked)
	a.mu.Unlock()
	if err != nil {
		return conflict{fmt.Errorf("taking list %d of revoked certificates: %w", list.Number(), err)}
	}
	if err := identity.WriteFile(a.path(FileRevoked), list.Text()); err != nil {
		return err
	}
	a.mu.Lock()
	a.revoked = list
	a.mu.Unlock()
	a.log.Info("certificates revoked", "list", list.Number(), "certificates", list.Len())
	return nil
}
