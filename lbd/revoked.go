package lbd

import (
	"crypto/tls"
	"slices"
	"time"

	"skyserve/internal/identity"
)

// revokedInterval is the interval of reads of the revocation list. A revocation must take
// effect within a minute, and the file is small.
const revokedInterval = 5 * time.Second

// revoked is the revocation list. The holders of its certificates are rejected.
type revoked struct {
	*identity.RevokedFile
	lastProblem string // the last problem that was logged; guarded by balancer.reloading
}

// isRevoked reports whether the peer certificate of a connection was revoked after the connection
// was opened.
func (r *revoked) isRevoked(s *tls.ConnectionState) bool {
	return s != nil && slices.ContainsFunc(s.PeerCertificates, r.Has)
}

// reloadRevoked loads a newer list, and logs each problem once.
func (b *balancer) reloadRevoked() {
	if b.identity == nil {
		return
	}
	b.reloading.Lock()
	defer b.reloading.Unlock()
	r := b.identity.revoked
	changed, err := r.Reload()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	switch {
	case problem != "" && problem != r.lastProblem:
		b.log.Error("loading the revocation list failed, keeping the current one", "file", r.Path(), "err", err)
	case changed:
		b.log.Info("revocation list reloaded", "list", r.List().Number(), "certificates", r.List().Len())
	}
	r.lastProblem = problem
}
