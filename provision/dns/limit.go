package dns

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// Responses over UDP are limited per client network. Otherwise an attacker could forge source addresses to
// flood a victim with responses.
const (
	ratePerSecond = 200  // per second and network: a caching resolver sends a few queries per second
	burstSize     = 1000 // at once, after idle time: for a resolver that starts with an empty cache
	bucketCount   = 4096 // memory is bounded: networks that hash to the same slot share a bucket
)

// bucket is the token bucket of a network.
type bucket struct {
	tokens float64
	at     time.Time // time of the last update
}

// take removes one token; false if there is none.
func (b *bucket) take(now time.Time) bool {
	b.tokens = min(burstSize, b.tokens+now.Sub(b.at).Seconds()*ratePerSecond)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// limiter limits responses by network. The zero value is ready to use.
type limiter struct {
	mu    sync.Mutex
	seed  maphash.Seed // random, so that an attacker cannot predict which networks share a slot
	slots []bucket
}

// allow reports whether one more response to a network, a /24 or a /56, is allowed.
func (l *limiter) allow(to netip.Addr, now time.Time) bool {
	bits := 24
	if to.Is6() {
		bits = 56
	}
	network, _ := to.Prefix(bits) // the prefix of an invalid address is zero, which also has a slot
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots == nil {
		l.seed, l.slots = maphash.MakeSeed(), make([]bucket, bucketCount)
	}
	slot := &l.slots[maphash.Comparable(l.seed, network)%bucketCount]
	if slot.at.IsZero() {
		*slot = bucket{tokens: burstSize, at: now}
	}
	return slot.take(now)
}
