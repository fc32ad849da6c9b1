package core

import (
	"hash/fnv"
	"math"
	"time"
)

// How the time grows between the rounds of a request that fails everywhere, and the
// share of it that is drawn by the request's id, so that what failed together does
// not come back together. SGLang's router has the same.
const (
	retryGrowth = 1.5
	retryJitter = 0.2
)

// startRetryRound allows a request everything again when nothing that it does not avoid
// answers: a replica that failed once is better than none. Other replicas are tried
// at once; before the same ones are, it rests, each time longer: what made them all
// fail needs time to pass. It says whether the request may be placed now.
func (b *Balancer) startRetryRound(now time.Duration, r *request) bool {
	switch {
	case len(r.avoid) == 0 || b.anyTargetLeft(now, r):
		return true
	case now-r.failedAt < b.cfg.retryBackoff(r.ID, r.retryRounds):
		return false
	}
	r.avoid, r.refusals = r.avoid[:0], r.refusals[:0]
	r.retryRounds++
	return true
}

// retryBackoff is how long a request waits that everything which answers has failed, after
// so many earlier rounds.
func (c *Config) retryBackoff(id string, rounds int) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	draw := float64(mix(h.Sum64()+uint64(rounds))>>11) / (1 << 53) // 0 to 1
	wait := min(float64(c.RetryWait)*math.Pow(retryGrowth, float64(rounds)), float64(c.RetryWaitMax))
	return time.Duration(wait * (1 - retryJitter + 2*retryJitter*draw))
}

// mix spreads the bits of a hash (the finaliser of SplitMix64): FNV's high ones
// hardly depend on the last letters.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
