package policy

// fasterPace is the highest pace, relative to another replica's, of a replica that counts as faster. The speeds of similar
// GPUs differ by less, and learned paces too.
const fasterPace = 0.8

// waitSeconds returns how long a request that takes this many tokens of free memory (addedTokens) waits at c before its
// computation starts. For a peer, it is the sum of the round-trip time, the wait there, and the margins
// (PeerMarginShare, PeerPrefillMarginShare). If the free memory of a replica does not suffice, each of the unconfirmed
// requests, and then this request, waits until another request there has ended. The time for which a request is held has a
// weight (FasterHoldWeight).
func (p *Cost) waitSeconds(t *costTerms, c *Candidate, added float64) float64 {
	wait := inSeconds(c.RTT)
	switch {
	case c.Peer:
		margin := p.constants.PeerMarginShare*(t.promptTokens/p.constants.PrefillRate+t.decodeSeconds) + p.constants.PeerPrefillMarginShare*added/p.constants.PrefillRate
		wait += inSeconds(c.ExpectedWait) + c.pace()*margin
	case !canSendTo(c):
		hold := p.holdSeconds(t, c)
		if c.pace() <= fasterPace*t.sendPace {
			hold *= p.constants.FasterHoldWeight
		}
		wait += hold
	case !fits(c, added):
		wait += inSeconds(HoldTime(c.Unconfirmed, requestsAt(c), t.residenceAt(c), c.pace()))
	}
	return wait
}

// fits reports whether a replica has free memory for this many tokens, in addition to the requests that were sent
// there and do not run yet. It returns true if the free memory is unknown. Requests that this balancer did not send are
// assumed to need as much as the mean request that it sent. A prefix that requests share is counted for each of them, so
// the estimate of the free memory may be too high.
func fits(c *Candidate, added float64) bool {
	running := float64(c.Running.Or(0))
	if c.KV.Or(0) <= 0 || running <= 0 || c.Outstanding == 0 {
		return true
	}
	perRequest := float64(c.ContextTokens) / float64(c.Outstanding)
	capacity := running / c.KV.Value // number of requests that fill the memory
	return added <= perRequest*(capacity-float64(requestsAt(c)))
}

// holdSeconds returns how long a request is held for a replica to which it cannot be sent now. If the replica has free
// memory and has had pending requests only for a short time (TransientSteps), they arrived during a step, or wait for
// the prompts that it computes, and start in the next steps. Otherwise its batch or memory is full, and a request there
// has to end first.
func (p *Cost) holdSeconds(t *costTerms, c *Candidate) float64 {
	ahead := c.Held + c.Pending.Or(0)
	pace, step := c.pace(), c.pace()*p.constants.DecodeBase
	wait := inSeconds(HoldTime(ahead, requestsAt(c), t.residenceAt(c), pace))
	transient := p.constants.TransientSteps*step + pace*float64(c.PrefillTokens)/p.constants.PrefillRate
	if c.KV.Known && c.KV.Value < p.constants.MemoryThreshold && inSeconds(c.PendingFor) < transient {
		wait = min(wait, float64(ahead+1)*p.constants.AdmitSteps*step)
	}
	return wait
}
