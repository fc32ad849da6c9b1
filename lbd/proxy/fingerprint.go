package proxy

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// fingerprint is equal for requests that ask an engine for the same, whoever asks: a
// hash of the model, the path and all top-level fields but those that tell who asks and
// how the answer is to be delivered. It is not known by which of them an engine dies,
// so that each counts. Their order does not. It is never 0.
//
// It is seeded like the prefix keys, so that balancers of a service agree on it and
// nobody else can tell a prompt by it.
func (c *call) fingerprint(seed uint64, e *endpoint, stands modelName) uint64 {
	h := xxh3.HashStringSeed(e.path, seed)
	h = xxh3.HashStringSeed(stands.model, h)
	h = xxh3.HashStringSeed(stands.adapter, h)
	var sum [8]byte
	binary.LittleEndian.PutUint64(sum[:], c.sum)
	return max(1, xxh3.HashSeed(sum[:], h))
}

// addToSum adds a field to what the fingerprint is made from.
func (c *call) addToSum(key, value []byte) {
	if kindOf(value) == 'n' || delivers(key) {
		return
	}
	name, _ := text(key, nil)
	c.sum += xxh3.HashSeed(value, xxh3.Hash(name))
}

// delivers says whether a field only tells who asks, or how the answer is delivered.
func delivers(key []byte) bool {
	switch string(key) {
	case `"model"`, // as the name that it stands for
		`"stream"`, `"stream_options"`, `"user"`, `"safety_identifier"`, `"metadata"`, `"prompt_cache_key"`, `"cache_salt"`,
		`"store"`, `"service_tier"`, `"request_id"`, `"session_id"`:
		return true
	}
	return false
}
