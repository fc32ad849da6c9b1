package core

import (
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// QueuedForPrefill is the Reason of ActionQueue for a request that waits until its replica begins to compute another
// prompt with the same beginning.
const QueuedForPrefill = "shared_prefill"

// awaitsSharedPrefill reports whether r stays in the queue although the policy chose the replica t, because t is about to
// compute the same part of another prompt. Engines such as SGLang cache a prompt only when its step ends. They would
// compute the shared part twice if both requests were in the same step, which would delay r and all other requests there.
// So r is sent when the other prompt is expected to be in a step already, or has its first token. This costs r at most
// about the decode step that begins at the replica before r arrives. So the shared part must take longer than that.
func (b *Balancer) awaitsSharedPrefill(now time.Duration, r *request, t *target, c *policy.Candidate) bool {
	if !b.traits.Holds || t.peer || r.Prompt.Bytes() == 0 {
		return false
	}
	shared := t.uncomputedBytes(now, r.Prompt, c.MatchBytes)
	tokens := int(float64(r.promptLength()) * float64(shared) / float64(r.Prompt.Bytes()))
	return policy.NominalPrefill(tokens) > policy.NominalStep(t.outstanding, t.work.context())
}

// uncomputedBytes returns how many bytes of a match at t, of this many bytes, t will compute for one of its requests, and
// has probably not begun to.
func (t *target) uncomputedBytes(now time.Duration, prompt prefix.Key, match int) int {
	most := 0
	for _, other := range t.unstarted {
		// Without a stream, the first token arrives with the last: nothing shows that the prompt was computed.
		if other.Streamed && now < other.prefillExpectedAt && other.beginsWith(prompt, match) {
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

// expectPrefill sets the time at which t is expected to begin to compute the prompt of r, which is sent there now: after
// the current step, and the prompts that t has to compute before.
func (r *request) expectPrefill(now time.Duration, t *target) {
	ahead := policy.NominalStep(t.outstanding, t.work.context()) + policy.NominalPrefill(t.work.prefillTokens)
	r.prefillExpectedAt = now + time.Duration(t.pace.Value()*float64(ahead))
}
