package lbd

import (
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"
	"time"

	"skyserve/internal/identity"
)

// revokedEvery is how often the list of revoked certificates is read: somebody who is
// taken out is to be refused within a minute, and the file is small.
const revokedEvery = 5 * time.Second

// revoked is the list of revoked certificates in a file that may be replaced by a newer
// one; whoever is on it is let in no more.
type revoked struct {
	path string
	root *x509.Certificate
	list atomic.Pointer[identity.Revoked]
	said string // the last problem that was logged; guarded by balancer.reloading
}

// openRevoked reads the list; an empty path is one of nobody.
func openRevoked(path string, root *x509.Certificate) (*revoked, error) {
	r := &revoked{path: path, root: root}
	r.list.Store(&identity.Revoked{})
	_, err := r.look()
	return r, err
}

// has says whether a certificate is on the list.
func (r *revoked) has(c *x509.Certificate) bool { return r.list.Load().Has(c) }

// look takes up the list that is in the file by now; one that cannot be used, or is
// older, changes nothing.
func (r *revoked) look() (changed bool, err error) {
	if r.path == "" {
		return false, nil
	}
	list, err := identity.ReadRevoked(r.path, r.root)
	if err == nil {
		err = list.After(*r.list.Load())
	}
	if err != nil || list.Number() == r.list.Load().Number() {
		return false, err
	}
	r.list.Store(&list)
	return true, nil
}

// present says whether who is at the other end of a connection was taken out since it
// was made.
func (r *revoked) present(s *tls.ConnectionState) bool {
	return s != nil && len(s.PeerCertificates) > 0 && r.has(s.PeerCertificates[0])
}

// lookForRevoked takes up a newer list, and logs a problem once for as long as it stays.
func (b *balancer) lookForRevoked() {
	if b.member == nil {
		return
	}
	b.reloading.Lock()
	defer b.reloading.Unlock()
	r := b.member.revoked
	changed, err := r.look()
	said := ""
	if err != nil {
		said = err.Error()
	}
	switch {
	case said != "" && said != r.said:
		b.log.Error("the list of revoked certificates cannot be used; the one in use stays", "file", r.path, "err", err)
	case changed:
		b.log.Info("certificates revoked", "list", r.list.Load().Number(), "certificates", r.list.Load().Len())
	}
	r.said = said
}
