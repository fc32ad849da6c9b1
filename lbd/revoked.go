package lbd

import (
	"crypto/tls"
	"slices"
	"time"

	"skyserve/internal/identity"
)

// revokedEvery is how often the list of revoked certificates is read: a revocation must take effect
// within a minute, and the file is small.
const revokedEvery = 5 * time.Second

// revoked is the list of revoked certificates. Their holders are rejected.
type revoked struct {
	*identity.RevokedFile
	said string // the last problem that was logged; guarded by balancer.reloading
}

// present reports whether the peer certificate of a connection was revoked since it was opened.
func (r *revoked) present(s *tls.ConnectionState) bool {
	return s != nil && slices.ContainsFunc(s.PeerCertificates, r.Has)
}

// lookForRevoked loads a newer list, and logs each problem once.
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
		b.log.Error("list of revoked certificates cannot be used; keeping the current one", "file", r.Path(), "err", err)
	case changed:
		b.log.Info("certificates revoked", "list", r.List().Number(), "certificates", r.List().Len())
	}
	r.said = said
}
