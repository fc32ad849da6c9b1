package quota

import (
	"crypto/sha256"
	"time"

	"skyserve/internal/service"
)

// Keyring finds the account of an API key by the key's hash; empty = everybody
// may enter. How long a look takes tells something of a hash only, and nobody
// can make keys whose hashes come near one.
type Keyring map[[sha256.Size]byte]*Account

// NewKeyring opens the accounts of the keys; those without a secret are left out.
func NewKeyring(l *Ledger, keys []service.APIKey, now time.Duration) Keyring {
	k := Keyring{}
	for _, key := range keys {
		if key.Secret != "" {
			k[sha256.Sum256([]byte(key.Secret))] = l.Open(key, now)
		}
	}
	return k
}

// Find is the account of a key; ok is false where there is no such key.
func (k Keyring) Find(secret string) (a *Account, ok bool) {
	a, ok = k[sha256.Sum256([]byte(secret))]
	return a, ok
}
