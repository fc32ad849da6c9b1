package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"strings"
)

// keyring is the hashes of the API keys; empty = everybody may enter.
type keyring [][sha256.Size]byte

// SetKeys replaces the API keys that clients must present, all at once; none =
// open to everybody. Requests that were let in go on.
func (r *Runtime) SetKeys(keys []string) {
	k := newKeyring(keys)
	r.keys.Store(&k)
}

// keyring is the API keys that are good now.
func (r *Runtime) keyring() keyring { return *r.keys.Load() }

func newKeyring(keys []string) keyring {
	var k keyring
	for _, key := range keys {
		if key != "" {
			k = append(k, sha256.Sum256([]byte(key)))
		}
	}
	return k
}

// admit says whether a request carries one of the keys, and whose tenant it
// then is. Every key is compared in full, so time tells nothing.
func (k keyring) admit(h http.Header) (tenant string, ok bool) {
	if len(k) == 0 {
		return "", true
	}
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	match := 0
	for i := range k {
		match |= subtle.ConstantTimeCompare(sum[:], k[i][:])
	}
	if match == 0 {
		return "", false
	}
	return "key-" + hex.EncodeToString(sum[:4]), true
}

// peerAllowed says whether a request comes from a balancer of this service:
// it knows the peer token or, where nobody is asked for anything, comes from this
// machine. A balancer that asks its clients for keys and has no token has no
// peers: behind a reverse proxy of this machine all clients come from here.
func peerAllowed(token string, keys keyring, req *http.Request) bool {
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
