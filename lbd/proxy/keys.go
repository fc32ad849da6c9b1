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

// SetKeys replaces the API keys that clients must present, all at once; none =
// open to everybody. A name that stays keeps what it has used and holds of its
// limits. Requests that were let in go on.
func (r *Runtime) SetKeys(keys []service.APIKey) {
	k := quota.NewKeyring(r.ledger, keys, r.Elapsed())
	r.keys.Store(&k)
}

// AsksForKeys says whether clients must present an API key.
func (r *Runtime) AsksForKeys() bool { return len(r.keyring()) > 0 }

// keyring is the API keys that are good now.
func (r *Runtime) keyring() quota.Keyring { return *r.keys.Load() }

// admit says whether a request carries one of the keys, and whose; nil where
// nobody is asked for one.
func admit(k quota.Keyring, h http.Header) (a *quota.Account, ok bool) {
	if len(k) == 0 {
		return nil, true
	}
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, false
	}
	return k.Find(strings.TrimSpace(token))
}

// peerAllowed says whether a request comes from a balancer of this service:
// it knows the peer token or, where nobody is asked for anything, comes from this
// machine. A balancer that asks its clients for keys and has no token has no
// peers: behind a reverse proxy of this machine all clients come from here.
func peerAllowed(token string, keys quota.Keyring, req *http.Request) bool {
	given := req.Header.Get(headerPeerToken)
	if token == "" {
		return len(keys) == 0 && given == "" && fromLoopback(req.RemoteAddr)
	}
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

func fromLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
