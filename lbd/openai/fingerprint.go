package openai

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Fingerprint returns a hash of the path, the model and all top-level fields except those that
// identify the client or affect only the delivery of the answer. It does not depend on the order of
// the fields or on the tenant. It is never 0.
//
// It uses the seed of the prefix keys: the balancers of a service share it. Without it, nobody can
// test whether a prompt has a fingerprint.
func (c *Call) Fingerprint(e *Endpoint, resolved ResolvedModel) uint64 {
	h := xxh3.HashStringSeed(e.Path, c.seed)
	h = xxh3.HashStringSeed(resolved.Model, h)
	h = xxh3.HashStringSeed(resolved.Adapter, h)
	var sum [8]byte
	binary.LittleEndian.PutUint64(sum[:], c.sum)
	return max(1, xxh3.HashSeed(sum[:], h))
}

// addToSum adds a field to the sum that the fingerprint hashes. Each summand is seeded: otherwise a
// client could construct fields with the same sum as another client's request.
func (c *Call) addToSum(key, value []byte) {
	if kindOf(value) == 'n' || outsideFingerprint(key) {
		return
	}
	name, _ := text(key, nil)
	c.addValue(name, value)
}

// addValue adds a field with a decoded name.
func (c *Call) addValue(name, value []byte) {
	c.sum += xxh3.HashSeed(value, xxh3.HashSeed(name, c.seed))
}

// outsideFingerprint reports whether a field identifies the client or affects only the delivery of
// the answer.
func outsideFingerprint(key []byte) bool {
	switch string(key) {
	case `"model"`, // its resolved name is hashed instead
		`"stream"`, `"stream_options"`, `"user"`, `"safety_identifier"`, `"metadata"`, `"prompt_cache_key"`, `"cache_salt"`,
		`"store"`, `"service_tier"`, `"request_id"`, `"session_id"`:
		return true
	}
	return false
}
