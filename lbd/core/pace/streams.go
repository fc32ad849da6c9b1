package pace

import "time"

const (
	// recentSlices is the number of slices in a recent pace: two seconds of streams, in which a replica
	// generates tens of tokens.
	recentSlices = 4
	// maxAge is the age from which a recent pace is unknown.
	maxAge = 10 * time.Second
)

// Streams measures the pace of a replica by its running streams. It shows a change within seconds, while
// Estimate, which learns from responses that have ended, needs many of them. The zero value has no data.
type Streams struct {
	slices [recentSlices]slice // the last ones; the oldest is replaced next
	added  int
	at     time.Duration // when the last one ended
}

// slice is a part of a second in which streams were running.
type slice struct{ actual, nominal time.Duration }

// Add adds a time in which streams were running. nominal is the duration of the same work at the nominal
// replica.
func (s *Streams) Add(now, actual, nominal time.Duration) {
	if now-s.at > maxAge {
		s.added = 0
	}
	s.slices[s.added%recentSlices] = slice{actual, nominal}
	s.added, s.at = s.added+1, now
}

// Recent returns the pace of the last seconds; 0 if it is unknown. It is that of the fastest slice: an engine
// whose streams pause for a moment, because it computes prompts again that it had evicted, is not slow.
func (s *Streams) Recent(now time.Duration) float64 {
	if s.added < recentSlices || now-s.at > maxAge {
		return 0
	}
	fastest := float64(Limit)
	for _, x := range s.slices {
		fastest = min(fastest, bounded(float64(x.actual)/float64(max(x.nominal, 1))))
	}
	return fastest
}
