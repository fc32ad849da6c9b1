package proxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/url"
	"strings"

	"github.com/zeebo/xxh3"

	"skyserve/lbd/core"
)

// Labels for deriving hashes from the peer token, one label per use, so that no hash reveals anything
// about another.
const (
	labelSeed        = "skyserve: seed of prefix keys"
	labelFingerprint = "skyserve: fingerprint of prefix keys"
)

// keySeed returns the seed of prefix keys. With a peer token it is the same in every balancer that has
// the token, so that they can exchange cache updates. Otherwise it is unique to this process.
//
// A client cannot construct prompts that collide in either case. It would need the seed, or the
// hashes of its own prompts. The seed is derived with HMAC-SHA256, so it is as hard to find as the
// token. The hashes leave the service's balancers only in a record on the operator's disk.
func keySeed(token string) uint64 {
	if token == "" {
		return rand.Uint64()
	}
	return binary.LittleEndian.Uint64(derive(token, labelSeed))
}

// seedOf returns the seed of a tenant's prefix keys. Each tenant has its own seed, the same in every
// balancer of the service, so that a match reveals nothing about another tenant's prompts. Without a
// tenant, or if tenants share prefixes, it is the service's seed.
func (r *Runtime) seedOf(tenant string) uint64 {
	if tenant == "" || r.sharePrefixes.Load() {
		return r.seed
	}
	return xxh3.HashStringSeed(tenant, r.seed)
}

// SetSharePrefixes sets whether tenants share prefixes. It applies to requests that arrive later.
func (r *Runtime) SetSharePrefixes(on bool) { r.sharePrefixes.Store(on) }

func derive(token, label string) []byte {
	mac := hmac.New(sha256.New, []byte(token))
	_, _ = mac.Write([]byte(label))
	return mac.Sum(nil)
}

// KeyFingerprint returns a fingerprint of the seed of prefix keys. Two balancers with the same fingerprint
// compute the same hashes for equal prompts. The fingerprint reveals nothing else. It is empty if no other
// balancer can have the same seed.
func (r *Runtime) KeyFingerprint() string {
	if r.self.PeerToken == "" {
		return ""
	}
	return hex.EncodeToString(derive(r.self.PeerToken, labelFingerprint)[:8])
}

// CacheUpdates calls core.Balancer.CacheUpdates with the current time.
func (r *Runtime) CacheUpdates(since uint64, all bool, maxBytes int) (entries []core.CacheUpdate, next uint64, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.CacheUpdates(r.Elapsed(), since, all, maxBytes)
}

// processName returns the name of an engine, which is the same at all balancers: the hash of its URL
// and model, because a URL may contain a password.
func processName(base *url.URL, model string) string {
	sum := sha256.Sum256([]byte(strings.TrimRight(base.String(), "/") + "\n" + model))
	return hex.EncodeToString(sum[:8])
}
