package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"

	"skyserve/internal/service"
	"skyserve/lbd/quota"
)

// SetKeys replaces all API keys that clients must present; none = no authentication. A name that
// remains keeps its usage and reservations. Admitted requests continue.
func (r *Runtime) SetKeys(keys []service.APIKey) {
	k := quota.NewKeyring(r.ledger, keys, r.Elapsed())
	r.keys.Store(&k)
}

// RequiresKeys reports whether clients must present an API key.
func (r *Runtime) RequiresKeys() bool { return len(r.keyring()) > 0 }

// keyring returns the current API keys.
func (r *Runtime) keyring() quota.Keyring { return *r.keys.Load() }

// authenticate reports whether a request presents a valid key, and returns its account; nil if no key is
// required.
func authenticate(k quota.Keyring, h http.Header) (a *quota.Account, ok bool) {
	if len(k) == 0 {
		return nil, true
	}
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, false
	}
	return k.Find(strings.TrimSpace(token))
}

// peerAllowed reports whether a request is from a balancer of this service: it has the peer token or,
// without keys and token, is from this machine. If keys are required and no token is set, no request
// counts as one of a balancer: behind a reverse proxy on this machine, the requests of all clients
// are from this machine.
func peerAllowed(token string, keys quota.Keyring, req *http.Request) bool {
	given := req.Header.Get(headerPeerToken)
	if token == "" {
		return len(keys) == 0 && given == "" && fromLoopback(req.RemoteAddr)
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
