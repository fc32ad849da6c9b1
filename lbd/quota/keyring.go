package quota

import (
	"crypto/sha256"
	"time"

	"skyserve/internal/service"
)

// Keyring finds the account of an API key by the key's hash. If it is empty, and no issuers of
// identity tokens are configured, clients need no authentication.
//
// The duration of a lookup reveals at most something about a hash. That is no help to an attacker,
// who cannot create keys with similar hashes.
type Keyring map[[sha256.Size]byte]*Account

// NewKeyring opens the accounts of the keys; keys without a secret are ignored.
func NewKeyring(l *Ledger, keys []service.APIKey, now time.Duration) Keyring {
	k := Keyring{}
	for _, key := range keys {
		if key.Secret != "" {
			k[Hash(key.Secret)] = l.Open(key, now)
		}
	}
	return k
}

// Find returns the account of the key with a hash; ok is false if there is none.
func (k Keyring) Find(hash [sha256.Size]byte) (a *Account, ok bool) {
	a, ok = k[hash]
	return a, ok
}

// Hash returns the hash of a key or token. It allocates memory only for unusually long ones.
func Hash(credential string) [sha256.Size]byte {
	switch n := len(credential); {
	case n <= 64: // most keys
		var buf [64]byte
		return sha256.Sum256(buf[:copy(buf[:], credential)])
	case n <= 2048: // most tokens
		var buf [2048]byte
		return sha256.Sum256(buf[:copy(buf[:], credential)])
	}
	return sha256.Sum256([]byte(credential))
}
