package core

import (
	"hash/fnv"
	"math"
	"time"
)

// Growth of the backoff between the rounds of a request that failed at every target, and the share of
// it that is derived from the request's id, so that requests that failed together are not retried
// together. The values are those of SGLang's router.
const (
	retryGrowth = 1.5
	retryJitter = 0.2
)

// startRetryRound reports whether r may be placed now. After r has failed at every live target, it starts
// a new round in which r may use all targets again: a replica that failed once is better than none.
// Targets not yet tried are tried at once. Before each new round r backs off, longer each time, so
// that a common cause can disappear.
func (b *Balancer) startRetryRound(now time.Duration, r *request) bool {
	switch {
	case len(r.avoid) == 0 || b.anyTargetRemaining(now, r):
		return true
	case now-r.failedAt < b.cfg.retryBackoff(r.ID, r.retryRounds):
		return false
	}
	r.avoid, r.refusals = r.avoid[:0], r.refusals[:0]
	r.retryRounds++
	return true
}

// retryBackoff returns the backoff of a request after it has failed at every live target, given the
// number of earlier rounds.
func (c *Config) retryBackoff(id string, rounds int) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	draw := float64(mixBits(h.Sum64()+uint64(rounds))>>11) / (1 << 53) // 0 to 1
	wait := min(float64(c.RetryBackoff)*math.Pow(retryGrowth, float64(rounds)), float64(c.MaxRetryBackoff))
	return time.Duration(wait * (1 - retryJitter + 2*retryJitter*draw))
}

// mixBits spreads the bits of a hash (the finaliser of SplitMix64). The high bits of FNV hardly depend
// on the last characters.
func mixBits(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
