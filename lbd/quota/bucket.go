package quota

import (
	"strconv"
	"time"
)

// A bucket counts in parts of a token (or request), so that the increase per microsecond is a whole
// number: a limit of L per minute adds L parts.
const (
	partsPerToken = int64(time.Minute / time.Microsecond)
	// maxDebt is the longest time, in microseconds, until a bucket in debt has filled to zero.
	// Unexpectedly long answers block a key for at most this time.
	maxDebt = int64(time.Hour / time.Microsecond)
	// maxChange is the maximum change of a bucket at once, in tokens. It prevents an overflow of
	// the parts.
	maxChange = int64(1) << 36
)

// bucket is a token bucket: it fills at a limit per minute, up to one minute's worth. Its level can
// be negative: when an answer has more tokens than expected, the difference is a debt. The zero
// value has no limit.
type bucket struct {
	limit int64  // tokens per minute
	level int64  // parts; a negative level is a debt
	text  string // limit, as written in headers
	at    int64  // time of level, in microseconds since the balancer's start
}

// set changes the limit. A bucket without an earlier limit becomes full; otherwise it keeps its
// level, capped to the new capacity.
func (b *bucket) set(limit int64, now time.Duration) {
	b.fill(now)
	if b.limit == 0 {
		b.level = limit * partsPerToken
	}
	b.limit, b.text = limit, strconv.FormatInt(limit, 10)
	b.clampLevel()
}

func (b *bucket) capacity() int64 { return b.limit * partsPerToken }

// fill adds the tokens for the time that passed. A clock that runs backwards adds nothing.
func (b *bucket) fill(now time.Duration) {
	us := now.Microseconds()
	passed := us - b.at
	if passed <= 0 {
		return
	}
	b.at = us
	if b.limit == 0 {
		return
	}
	if missing := b.capacity() - b.level; passed > missing/b.limit {
		b.level = b.capacity()
	} else {
		b.level += passed * b.limit
	}
}

// take removes n tokens. If the level is too low, it removes nothing and returns the time until it
// would succeed; never is set if n exceeds the limit.
func (b *bucket) take(n int64, now time.Duration) (wait time.Duration, never, ok bool) {
	if b.limit == 0 {
		return 0, false, true
	}
	b.fill(now)
	if n > b.limit {
		return 0, true, false
	}
	if need := n*partsPerToken - b.level; need > 0 {
		return b.timeFor(need), false, false
	}
	b.level -= n * partsPerToken
	return 0, false, true
}

// giveBack adds n tokens, up to the capacity. A negative n removes tokens, even if the level
// becomes negative.
func (b *bucket) giveBack(n int64, now time.Duration) {
	if b.limit == 0 {
		return
	}
	b.fill(now)
	b.level += max(min(n, maxChange), -maxChange) * partsPerToken
	b.clampLevel()
}

// clampLevel keeps the level within the capacity and maxDebt.
func (b *bucket) clampLevel() { b.level = max(min(b.level, b.capacity()), -maxDebt*b.limit) }

// timeFor returns the time in which the bucket gains that many parts.
func (b *bucket) timeFor(parts int64) time.Duration {
	return time.Duration((parts+b.limit-1)/b.limit) * time.Microsecond
}

// remaining returns the available whole tokens, and the time until the bucket is full.
func (b *bucket) remaining(now time.Duration) (tokens int64, full time.Duration) {
	b.fill(now)
	return max(b.level, 0) / partsPerToken, b.timeFor(b.capacity() - b.level)
}
