package dns

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// Answers over UDP are limited by the network that they go to, since its address may be
// forged by somebody who wants it flooded.
const (
	limitEach  = 200  // a second and network: a resolver that keeps answers asks a few times a second
	limitBurst = 1000 // at once, after rest: a resolver that starts
	limitSlots = 4096 // networks that fall into one slot share it, so that memory is bounded
)

// bucket is what a network may still be sent.
type bucket struct {
	left float64
	at   time.Time // when that was so
}

// take takes one answer, if there is one left.
func (b *bucket) take(now time.Time) bool {
	b.left = min(limitBurst, b.left+now.Sub(b.at).Seconds()*limitEach)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// limiter limits answers by network. The zero value limits nobody yet.
type limiter struct {
	mu    sync.Mutex
	seed  maphash.Seed // so that nobody knows whom he shares a slot with
	slots []bucket
}

// admits says whether a network, a /24 or a /56, may be sent one more answer.
func (l *limiter) admits(to netip.Addr, now time.Time) bool {
	bits := 24
	if to.Is6() {
		bits = 56
	}
	network, _ := to.Prefix(bits) // of no address it is that of nobody, which has a slot like all
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
