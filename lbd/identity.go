package lbd

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/admin"
)

// member is the balancer as a party of its service.
type member struct {
	party   identity.Party
	cert    *certificate
	revoked *revoked
}

// newMember reads the files of an identity; nil without one.
func newMember(files *service.Identity) (*member, error) {
	if files == nil {
		return nil, nil
	}
	root, err := identity.ReadRoot(files.CA)
	if err != nil {
		return nil, &ConfigError{Key: "identity.ca", Problem: err.Error()}
	}
	pair, err := loadPair(service.TLS{Cert: files.Cert, Key: files.Key})
	if err != nil {
		return nil, &ConfigError{Key: "identity", Problem: err.Error()}
	}
	list, err := identity.OpenRevoked(files.Revoked, root)
	if err != nil {
		return nil, &ConfigError{Key: "identity.revoked", Problem: err.Error()}
	}
	m := &member{cert: &certificate{}, revoked: &revoked{RevokedFile: list}}
	m.cert.use(pair)
	m.party = identity.Party{Root: root, Revoked: list.Has, Certificate: func() (*tls.Certificate, error) { return m.cert.pair.Load(), nil }}
	return m, nil
}

// toward is TLS to parties of a role; nil without an identity.
func (m *member) toward(role identity.Role) *tls.Config {
	if m == nil {
		return nil
	}
	return m.party.Client(role)
}

// certificate is what the member presents; nil without an identity.
func (m *member) certificate() *certificate {
	if m == nil {
		return nil
	}
	return m.cert
}

// adminListener speaks mTLS where the balancer has an identity. A replica has no
// business there; who has no certificate is a guest, who may have been invited.
func (b *balancer) adminListener() net.Listener {
	if b.member == nil {
		return b.adminPort
	}
	config := b.member.party.Open(identity.Operator, identity.Controller, identity.Balancer)
	if b.cfg.AdminPlain {
		return newEitherListener(b.adminPort, config)
	}
	return tls.NewListener(b.adminPort, config)
}

func (b *balancer) adminURL() string {
	if b.member == nil || b.cfg.AdminPlain {
		return "http://" + b.cfg.Admin
	}
	return "https://" + b.cfg.Admin
}

// adminHandler is what the admin listener serves. By mTLS it is told who asks: other
// balancers come to forward requests and to ask what peers ask, not to administer.
func (b *balancer) adminHandler(traffic http.Handler) http.Handler {
	if b.member == nil {
		return b.api
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil { // AdminPlain: by the token, if there is one
			b.api.ServeHTTP(w, r)
			return
		}
		switch who, err := identity.Of(r.TLS); {
		case b.member.revoked.present(r.TLS):
			b.api.Forbid(w, identity.ErrRevoked.Error())
		case err != nil: // it presented nothing: else the listener would have refused it
			b.api.ServeGuest(w, r)
		case who.Role == identity.Balancer:
			traffic.ServeHTTP(w, r)
		default:
			b.api.ServeMember(w, r)
		}
	})
}

// checkIdentity makes sure that an identity is whole, and that whoever is to be known
// by one is reached by TLS.
func checkIdentity(p *problems, cfg service.BalancerConfig) {
	if cfg.AdminPlain && admin.BeyondLoopback(cfg.Admin) {
		p.add("admin_plain", fmt.Sprintf("%s can be reached from other machines", cfg.Admin), "listen on 127.0.0.1")
	}
	if i := cfg.Identity; i != nil && (i.Cert == "" || i.Key == "" || i.CA == "") {
		p.add("identity", "needs cert, key and ca", "")
	}
	switch {
	case !cfg.StoreMTLS:
	case cfg.Identity == nil:
		p.add("store_mtls", "needs the balancer to have an identity", "set identity.cert, identity.key and identity.ca")
	case !strings.HasPrefix(cfg.StoreURL, "tls://"):
		p.add("store_url", fmt.Sprintf("store_mtls needs a URL that begins with tls://, got %q", telemetry.HideCredentials(cfg.StoreURL)), "")
	}
	const reach = "balancers with an identity reach each other by the admin address of each, which speaks mTLS"
	for i, peer := range cfg.Peers {
		if cfg.Identity != nil && !strings.HasPrefix(peer.URL, "https://") {
			p.add(fmt.Sprintf("peers[%d].url", i), fmt.Sprintf("must be https://HOST:PORT, got %q", peer.URL), reach)
		}
	}
	for i, r := range cfg.Replicas {
		switch key := fmt.Sprintf("replicas[%d].mtls", i); {
		case !r.MTLS:
		case cfg.Identity == nil:
			p.add(key, "needs the balancer to have an identity", "set identity.cert, identity.key and identity.ca")
		case !strings.HasPrefix(r.URL, "https://"):
			p.add(key, fmt.Sprintf("needs a URL that begins with https://, got %q", r.URL), "")
		}
	}
}
