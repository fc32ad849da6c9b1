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

// What the peer token is hashed with for each use, so that one tells nothing of
// the other.
const (
	labelSeed        = "skyserve: seed of prefix keys"
	labelFingerprint = "skyserve: fingerprint of prefix keys"
)

// keySeed is the seed of prefix keys: where there is a peer token the same in
// every balancer that has it, so that they can tell each other what they learned,
// else one of this process alone.
//
// A client cannot construct prompts that collide either way. It would need the
// seed, which is as hard to get from HMAC-SHA256 as the token itself, or the
// hashes of prompts of its own to search among, which leave the service's
// balancers only into a record on the operator's disk.
func keySeed(token string) uint64 {
	if token == "" {
		return rand.Uint64()
	}
	return binary.LittleEndian.Uint64(derive(token, labelSeed))
}

// seedOf is the seed of a tenant's prefix keys: one of its own, the same in every
// balancer of the service, so that nobody learns by a match what another tenant asked;
// the service's where tenants share prefixes, and where there are none.
func (r *Runtime) seedOf(tenant string) uint64 {
	if tenant == "" || r.sharePrefixes.Load() {
		return r.seed
	}
	return xxh3.HashStringSeed(tenant, r.seed)
}

// SetSharePrefixes lets tenants share what is known of prefixes, or not; it holds for
// requests that come from now on.
func (r *Runtime) SetSharePrefixes(on bool) { r.sharePrefixes.Store(on) }

func derive(token, label string) []byte {
	mac := hmac.New(sha256.New, []byte(token))
	_, _ = mac.Write([]byte(label))
	return mac.Sum(nil)
}

// KeyFingerprint tells whether two balancers hash prompts alike, and nothing
// else; empty when no other can.
func (r *Runtime) KeyFingerprint() string {
	if r.self.PeerToken == "" {
		return ""
	}
	return hex.EncodeToString(derive(r.self.PeerToken, labelFingerprint)[:8])
}

// Learned is core.Balancer.Learned at the present time.
func (r *Runtime) Learned(since uint64, all bool, maxBytes int) (entries []core.Learned, next uint64, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Learned(r.Elapsed(), since, all, maxBytes)
}

// processName is the name of an engine that all balancers have for it: its URL
// and model, hashed, as a URL may hold a password.
func processName(base *url.URL, model string) string {
	sum := sha256.Sum256([]byte(strings.TrimRight(base.String(), "/") + "\n" + model))
	return hex.EncodeToString(sum[:8])
}
