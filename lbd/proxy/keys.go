package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"

	"skyserve/internal/service"
	"skyserve/lbd/oidc"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// SetKeys replaces all API keys. Without API keys and identity tokens, clients are not authenticated. A name
// that remains keeps its usage and reservations. Admitted requests continue.
func (r *Runtime) SetKeys(keys []service.APIKey) {
	k := quota.NewKeyring(r.ledger, keys, r.Elapsed())
	r.keys.Store(&k)
}

// SetTenants replaces the limits of all tenants. A tenant that remains keeps its usage.
func (r *Runtime) SetTenants(limits map[string]service.KeyLimits) {
	r.ledger.SetTenants(limits, r.Elapsed())
}

// RequiresKeys reports whether clients must present an API key or an identity token.
func (r *Runtime) RequiresKeys() bool { return len(r.keyring()) > 0 || r.identityTokens.enabled() }

// keyring returns the current API keys.
func (r *Runtime) keyring() quota.Keyring { return *r.keys.Load() }

// authenticate returns the account of the API key or identity token that a request presents; nil if clients
// do not need one.
func (r *Runtime) authenticate(ctx context.Context, h http.Header) (*quota.Account, *openai.Error) {
	keys := r.keyring()
	if len(keys) == 0 && !r.identityTokens.enabled() {
		return nil, nil
	}
	credential, ok := bearer(h)
	if !ok {
		return nil, r.errUnauthorized()
	}
	hash := quota.Hash(credential)
	if a, ok := keys.Find(hash); ok {
		return a, nil
	}
	if !r.identityTokens.enabled() || !oidc.LooksLikeToken(credential) {
		return nil, r.errUnauthorized()
	}
	return r.identityTokens.account(ctx, hash, credential)
}

// peerAllowed reports whether a request is from a balancer of this service: it has the peer token or,
// without keys and token, is from this machine. If keys are required and no token is set, no request
// counts as one of a balancer: behind a reverse proxy on this machine, the requests of all clients
// are from this machine.
func peerAllowed(token string, keysRequired bool, req *http.Request) bool {
	given := req.Header.Get(headerPeerToken)
	if token == "" {
		return !keysRequired && given == "" && fromLoopback(req.RemoteAddr)
	}
	want, hash := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(want[:], hash[:]) == 1
}

func fromLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// dropKeys removes the keys of a client from the headers for an engine. They are keys of the service;
// without keys of the service, clients may send keys for the engine.
func dropKeys(h http.Header) {
	h.Del("Authorization")
	h.Del(headerAPIKey)
}
