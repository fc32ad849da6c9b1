package lbd

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/lbd/admin"
)

// serviceIdentity is the balancer's identity in its service.
type serviceIdentity struct {
	party   identity.Party
	cert    *certificate
	revoked *revoked
}

// newServiceIdentity reads the files of an identity; nil without one.
func newServiceIdentity(files *service.Identity) (*serviceIdentity, error) {
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
	m := &serviceIdentity{cert: &certificate{}, revoked: &revoked{RevokedFile: list}}
	m.cert.replace(pair)
	m.party = identity.Party{Root: root, Revoked: list.Has, Certificate: func() (*tls.Certificate, error) { return m.cert.pair.Load(), nil }}
	return m, nil
}

// clientTLS returns the TLS configuration for connections to a role; nil without an identity.
func (m *serviceIdentity) clientTLS(role identity.Role) *tls.Config {
	if m == nil {
		return nil
	}
	return m.party.Client(role)
}

// certificate returns the identity certificate; nil without an identity.
func (m *serviceIdentity) certificate() *certificate {
	if m == nil {
		return nil
	}
	return m.cert
}

// adminListener uses mTLS if the balancer has an identity. Replicas are rejected. A client without a
// certificate may use an invitation.
func (b *balancer) adminListener() net.Listener {
	if b.identity == nil {
		return b.adminPort
	}
	config := b.identity.party.ServerAllowingAnonymous(identity.Operator, identity.Controller, identity.Balancer)
	if b.cfg.AdminPlain {
		return newMixedListener(b.adminPort, config)
	}
	return tls.NewListener(b.adminPort, config)
}

func (b *balancer) adminURL() string {
	if b.identity == nil || b.cfg.AdminPlain {
		return "http://" + b.cfg.Admin
	}
	return "https://" + b.cfg.Admin
}

// adminHandler returns the handler of the admin listener. With mTLS the certificate identifies the
// client: other balancers may forward requests and use the paths for peers, but not the admin API.
func (b *balancer) adminHandler(traffic http.Handler) http.Handler {
	if b.identity == nil {
		return b.api
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil { // AdminPlain: authenticated by the token, if one is set
			b.api.ServeHTTP(w, r)
			return
		}
		switch client, err := identity.PeerName(r.TLS); {
		case b.identity.revoked.isRevoked(r.TLS):
			b.api.Forbid(w, identity.ErrRevoked.Error())
		case err != nil: // the client has no certificate; the listener rejects invalid ones
			b.api.ServeGuest(w, r)
		case client.Role == identity.Balancer:
			traffic.ServeHTTP(w, r)
		default:
			b.api.ServeCertified(w, admin.WithActor(r, certificateActor(client)))
		}
	})
}

// checkIdentity checks that an identity is complete, and that all connections that require it use
// TLS.
func checkIdentity(p *problems, cfg service.BalancerConfig) {
	if cfg.AdminPlain && admin.BeyondLoopback(cfg.Admin) {
		p.addProblem("admin_plain", fmt.Sprintf("%s is reachable from other machines", cfg.Admin), "listen on 127.0.0.1")
	}
	if i := cfg.Identity; i != nil && (i.Cert == "" || i.Key == "" || i.CA == "") {
		p.addProblem("identity", "requires cert, key and ca", "")
	}
	switch {
	case !cfg.StoreMTLS:
	case cfg.Identity == nil:
		p.addProblem("store_mtls", "requires an identity of the balancer", "set identity.cert, identity.key and identity.ca")
	case !strings.HasPrefix(cfg.StoreURL, "tls://"):
		p.addProblem("store_url", fmt.Sprintf("store_mtls requires a URL that starts with tls://, got %q", telemetry.HideCredentials(cfg.StoreURL)), "")
	case store.CheckURL(cfg.StoreURL) != nil:
		p.addProblem("store_url", fmt.Sprintf("must be tls://HOST:PORT, several separated by commas, got %q", telemetry.HideCredentials(cfg.StoreURL)), "")
	}
	const reach = "balancers with an identity connect to each other's admin address, which uses mTLS"
	for i, peer := range cfg.Peers {
		if cfg.Identity != nil && !strings.HasPrefix(peer.URL, "https://") {
			p.addProblem(fmt.Sprintf("peers[%d].url", i), fmt.Sprintf("must be https://HOST:PORT, got %q", peer.URL), reach)
		}
	}
	for i, r := range cfg.Replicas {
		switch key := fmt.Sprintf("replicas[%d].mtls", i); {
		case !r.MTLS:
		case cfg.Identity == nil:
			p.addProblem(key, "requires an identity of the balancer", "set identity.cert, identity.key and identity.ca")
		case !strings.HasPrefix(r.URL, "https://"):
			p.addProblem(key, fmt.Sprintf("requires a URL that starts with https://, got %q", r.URL), "")
		}
	}
}
