package core

import "time"

// starts measures how many requests a replica's engine starts and runs at once. Under PushPending,
// Config.UnconfirmedLimit meters a burst only as far as the engine has not shown more.
//
// A request starts in time if its first token, or its whole response, arrives within a probe
// interval: no report could have shown a shorter wait.
type starts struct {
	// together is the highest number of unconfirmed requests, including itself, with which a
	// request was sent that started in time: the engine's prefill keeps up with such a burst.
	together int
	// concurrent is the highest number of requests with a first token at the time when one of them
	// had started in time: the engine has slots and memory for as many.
	concurrent int
	// running counts the outstanding requests with a first token.
	running int
}

// addFirstToken records the first token of r.
func (s *starts) addFirstToken(now time.Duration, r *request, c *Config) {
	if r.prefilled {
		return
	}
	s.running++
	if now-r.sentAt <= c.ProbeInterval {
		s.together, s.concurrent = max(s.together, r.sentTogether), max(s.concurrent, s.running)
	} else {
		s.together, s.concurrent = min(s.together, r.sentTogether-1), min(s.concurrent, r.sentOutstanding-1)
	}
}

// removeRequest records that r is no longer outstanding.
func (s *starts) removeRequest(r *request) {
	if r.prefilled {
		s.running--
	}
}

// addUnstreamed records the response of r, which was not streamed and therefore has no first token. A
// response that arrives late is ignored: it may be long.
func (s *starts) addUnstreamed(now time.Duration, r *request, c *Config) {
	if now-r.sentAt <= c.ProbeInterval {
		s.together, s.concurrent = max(s.together, r.sentTogether), max(s.concurrent, r.sentOutstanding)
	}
}

// addPending records a report: the engine did not start its pending requests.
func (s *starts) addPending(outstanding, pending int) {
	if pending > 0 {
		s.concurrent = min(s.concurrent, max(0, outstanding-pending))
	}
}

// forget forgets what the engine has shown: another one may have replaced it.
func (s *starts) forget() { s.together, s.concurrent = 0, 0 }

// unconfirmedSlots returns the number of further requests that may be sent to t before one of its
// requests is confirmed. UnconfirmedLimit requests test whether the engine runs more at once than it
// has shown; below that number, as many test whether it starts more together.
func (t *target) unconfirmedSlots(c *Config) int {
	free := c.UnconfirmedLimit - len(t.unconfirmed)
	return max(free, min(free+t.starts.together, t.starts.concurrent-t.outstanding))
}
