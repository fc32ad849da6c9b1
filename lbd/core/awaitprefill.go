package core

import (
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// QueuedForPrefill is the Reason of ActionQueue for a request that waits until its replica has computed another prompt
// with the same beginning.
const QueuedForPrefill = "shared_prefill"

// awaitsSharedPrefill reports whether r stays in the queue although the policy chose the replica t, because t is
// prefilling another prompt with the same prefix, or will do so next. Engines such as SGLang cache a prompt only when its
// step ends. They would compute the shared part twice if both requests were in the same step, which would delay r and all
// other requests there. So r is sent when the other request has its first token. A decode step may begin there before r
// arrives, and delays r by its length, so computing the shared part must take longer than that.
func (b *Balancer) awaitsSharedPrefill(now time.Duration, r *request, t *target, c *policy.Candidate) bool {
	if !b.traits.Holds || t.peer || r.Prompt.Bytes() == 0 {
		return false
	}
	shared := t.uncomputedBytes(now, r.Prompt, c.MatchBytes)
	tokens := int(float64(r.promptLength()) * float64(shared) / float64(r.Prompt.Bytes()))
	return policy.NominalPrefill(tokens) > policy.NominalStep(t.outstanding, t.work.context())
}

// uncomputedBytes returns how many of the first bytes of a prompt, at most match, t has yet to compute for another request
// that begins with them.
func (t *target) uncomputedBytes(now time.Duration, prompt prefix.Key, match int) int {
	most := 0
	for _, other := range t.unstarted {
		// Without a stream, the response arrives as a whole: no first token shows that the prompt was computed.
		if other.Streamed && now < other.prefillExpectedBy && other.beginsWith(prompt, match) {
			most = max(most, match-other.matchAtSend)
		}
	}
	return most
}

// beginsWith reports whether r's prompt begins with the first bytes of another one.
func (r *request) beginsWith(prompt prefix.Key, bytes int) bool {
	last := min(bytes/prefix.BlockBytes, len(prompt)) - 1
	return last >= 0 && len(r.Prompt) > last && r.Prompt[last] == prompt[last] // chain hashes: all earlier ones are equal too
}

// expectPrefill sets the time by which t is expected to have computed the prompt of r, which is sent there now, and those
// before it. From then on, no request waits for this prefill: usually it has begun, and otherwise the engine may be stuck.
func (r *request) expectPrefill(now time.Duration, t *target) {
	ahead := policy.NominalStep(t.outstanding, t.work.context()) + policy.NominalPrefill(t.work.prefillTokens+r.uncached)
	r.prefillExpectedBy = now + time.Duration(t.pace.Value()*float64(ahead))
}
