package dns

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// Responses over UDP are limited per client network, since the source address may be forged to flood a
// victim.
const (
	limitEach  = 200  // per second and network: a caching resolver sends a few queries per second
	limitBurst = 1000 // at once, after idle time: for a resolver that starts
	limitSlots = 4096 // networks that hash to the same slot share it, so that memory is bounded
)

// bucket is the token bucket of a network.
type bucket struct {
	left float64
	at   time.Time // time of the last update
}

// take takes one token, if there is one.
func (b *bucket) take(now time.Time) bool {
	b.left = min(limitBurst, b.left+now.Sub(b.at).Seconds()*limitEach)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// limiter limits responses by network. The zero value is ready to use.
type limiter struct {
	mu    sync.Mutex
	seed  maphash.Seed // so that nobody can predict which networks share a slot
	slots []bucket
}

// admits reports whether one more response to a network, a /24 or a /56, is allowed.
func (l *limiter) admits(to netip.Addr, now time.Time) bool {
	bits := 24
	if to.Is6() {
		bits = 56
	}
	network, _ := to.Prefix(bits) // an invalid address is the zero prefix, which has a slot like any other
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots == nil {
		l.seed, l.slots = maphash.MakeSeed(), make([]bucket, limitSlots)
	}
	slot := &l.slots[maphash.Comparable(l.seed, network)%limitSlots]
	if slot.at.IsZero() {
		*slot = bucket{left: limitBurst, at: now}
	}
	return slot.take(now)
}
