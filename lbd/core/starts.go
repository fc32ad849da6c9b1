package core

import (
	"slices"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// starts measures how many requests a replica's engine starts and runs at once. Under PushPending, a burst is
// limited to unconfirmedLimit until the engine has been seen to start more.
//
// A request starts in time if its first token, or its whole response, arrives within a probe
// interval: reports arrive no more often, so they cannot show a shorter wait.
type starts struct {
	// maxBurst is the largest burst that started in time: the number of unconfirmed requests at the time
	// when such a request was sent, including it. The engine's prefill keeps up with such a burst.
	maxBurst int
	// maxConcurrent is the highest number of running requests at the moment when one of them started in
	// time: the engine has slots and memory for as many.
	maxConcurrent int
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
		s.maxBurst, s.maxConcurrent = max(s.maxBurst, r.unconfirmedAtSend), max(s.maxConcurrent, s.running)
	} else {
		s.maxBurst, s.maxConcurrent = min(s.maxBurst, r.unconfirmedAtSend-1), min(s.maxConcurrent, r.outstandingAtSend-1)
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
		s.maxBurst, s.maxConcurrent = max(s.maxBurst, r.unconfirmedAtSend), max(s.maxConcurrent, r.outstandingAtSend)
	}
}

// addPending records a report: the engine did not start its pending requests.
func (s *starts) addPending(outstanding, pending int) {
	if pending > 0 {
		s.maxConcurrent = min(s.maxConcurrent, max(0, outstanding-pending))
	}
}

// forget forgets what the engine has shown: another one may have replaced it.
func (s *starts) forget() { s.maxBurst, s.maxConcurrent = 0, 0 }

// removeUnstarted removes a request that had its first token or has ended.
func (t *target) removeUnstarted(r *request) {
	if i := slices.Index(t.unstarted, r); i >= 0 {
		t.unstarted = slices.Delete(t.unstarted, i, i+1)
	}
}

// stillPending returns how many of the pending requests of a replica's last report may still be pending: at
// most those without a first token. With rare probes, a replica would otherwise receive nothing until the
// next report, long after it has started what was pending.
func (t *target) stillPending() policy.Maybe[int] {
	pending := t.pending
	pending.Value = min(pending.Value, len(t.unstarted)-len(t.unconfirmed)+t.othersRequests)
	return pending
}

// stillRunning returns the running requests and the KV utilisation of a replica's last report, or zero if all of
// those requests have ended since. With rare probes, an empty replica would otherwise seem full until the next
// report. While some of them run, the figures remain as reported, because requests may share what they cached.
func (t *target) stillRunning() (running policy.Maybe[int], kv policy.Maybe[float64]) {
	running, kv = t.running, t.kv
	if running.Value > 0 && t.outstanding-len(t.unconfirmed)+t.othersRequests-t.stillPending().Value <= 0 {
		running.Value, kv.Value = 0, 0
	}
	return running, kv
}

// isComputing reports whether the first bytes of a prompt may be those of a prompt that t has not computed yet.
func (t *target) isComputing(prompt prefix.Key, bytes int) bool {
	return slices.ContainsFunc(t.unstarted, func(r *request) bool { return r.beginsWith(prompt, bytes) })
}

// joinsPrefill reports whether a prompt sent to t now would probably be computed in one step with the previous one: that
// was sent so recently that its step has probably not begun.
func (t *target) joinsPrefill(now time.Duration) bool {
	n := len(t.unstarted)
	return n > 0 && now-t.unstarted[n-1].sentAt < time.Duration(t.pace.Value()*float64(policy.NominalStep(t.outstanding, t.work.context())))
}

// unconfirmedSlots returns the number of further requests that may be sent to t before one of its requests is
// confirmed. It is the higher of two limits. The first limit is unconfirmedLimit unconfirmed requests: they test
// whether the engine runs more at once than before. The second limit is unconfirmedLimit more than the largest burst
// that started in time (starts.maxBurst), as long as the engine then runs no more than it has run before
// (starts.maxConcurrent).
func (t *target) unconfirmedSlots(c *Config) int {
	free := t.unconfirmedLimit(c) - len(t.unconfirmed)
	return max(free, min(free+t.starts.maxBurst, t.starts.maxConcurrent-t.outstanding))
}

// unconfirmedShare is the maximum number of unconfirmed requests at an engine whose memory is free, relative to the
// requests that it runs. Twice the share costs throughput: prompts then accumulate unseen.
const unconfirmedShare = 0.25

// unconfirmedLimit returns UnconfirmedLimit, or more at an engine that runs many requests and has memory for
// more: the limit would delay prompts that it can start at once.
func (t *target) unconfirmedLimit(c *Config) int {
	free := 1 - min(1, t.kv.Or(1))
	return max(c.UnconfirmedLimit, int(unconfirmedShare*free*float64(t.running.Or(0))))
}
