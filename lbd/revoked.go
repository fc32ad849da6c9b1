package lbd

import (
	"crypto/tls"
	"slices"
	"time"

	"skyserve/internal/identity"
)

// revokedEvery is how often the list of revoked certificates is read: somebody who is
// taken out is to be refused within a minute, and the file is small.
const revokedEvery = 5 * time.Second

// revoked is the list of revoked certificates; whoever is on it is let in no more.
type revoked struct {
	*identity.RevokedFile
	said string // the last problem that was logged; guarded by balancer.reloading
}

// present says whether who is at the other end of a connection was taken out since it
// was made.
func (r *revoked) present(s *tls.ConnectionState) bool {
	return s != nil && slices.ContainsFunc(s.PeerCertificates, r.Has)
}

// lookForRevoked takes up a newer list, and logs a problem once for as long as it stays.
func (b *balancer) lookForRevoked() {
	if b.member == nil {
		return
	}
	b.reloading.Lock()
	defer b.reloading.Unlock()
	r := b.member.revoked
	changed, err := r.Look()
	said := ""
	if err != nil {
		said = err.Error()
	}
	switch {
	case said != "" && said != r.said:
		b.log.Error("the list of revoked certificates cannot be used; the one in use stays", "file", r.Path(), "err", err)
	case changed:
		b.log.Info("certificates revoked", "list", r.List().Number(), "certificates", r.List().Len())
	}
	r.said = said
}
