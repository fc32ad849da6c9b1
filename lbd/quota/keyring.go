package quota

import (
	"crypto/sha256"
	"time"

	"skyserve/internal/service"
)

// Keyring finds the account of an API key by the key's hash; empty = authentication is disabled.
// The duration of a lookup reveals at most something about a hash. That is no help to an attacker,
// who cannot create keys with similar hashes.
type Keyring map[[sha256.Size]byte]*Account

// NewKeyring opens the accounts of the keys; keys without a secret are ignored.
func NewKeyring(l *Ledger, keys []service.APIKey, now time.Duration) Keyring {
	k := Keyring{}
	for _, key := range keys {
		if key.Secret != "" {
			k[sha256.Sum256([]byte(key.Secret))] = l.Open(key, now)
		}
	}
	return k
}

// Find returns the account of a key; ok is false if there is none.
func (k Keyring) Find(secret string) (a *Account, ok bool) {
	a, ok = k[sha256.Sum256([]byte(secret))]
	return a, ok
}
