package explain

import (
	"fmt"

	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// chosenBecause is each policy's reason as a sentence about the place chosen.
var chosenBecause = map[string]string{
	policy.ReasonRotation:    "it was its turn",
	policy.ReasonLeastLoad:   "it had the fewest requests outstanding",
	policy.ReasonPrefixMatch: "it holds the longest part of the prompt",
	policy.ReasonPrefixMiss:  "no place holds enough of the prompt to matter, and it had the most room",
	policy.ReasonOffload:     "no replica of this balancer had room, and this peer had",
	policy.ReasonPowerOfTwo:  "it was the lighter of two drawn at random",
	policy.ReasonSession:     "it is the session's place on the ring of hashes, or the next with room",
	policy.ReasonImbalance:   "the replicas were loaded too unequally to follow prefixes: it had the least",
	policy.ReasonRemaining:   "it had the fewest tokens left to process",
	policy.ReasonCheapest:    "it cost the least time: this request's own and that of those it slows down",
	// Never of a place that was chosen, but a record may be newer than this list.
	policy.ReasonNoneAvailable: "no place could take it",
}

// rejectedBecause is each of the core's reasons to refuse as a sentence.
var rejectedBecause = map[string]string{
	core.RejectDuplicate:  "a request of that id was in flight already",
	core.RejectNoReplica:  "no replica served the model, here or at a peer",
	core.RejectQueueFull:  "too many requests were waiting already",
	core.RejectWait:       "no place had room in the time that it may wait",
	core.RejectFailed:     "its replica failed after the client had seen some of the answer",
	core.RejectTooManyTry: "it had been tried as often as it may",
	core.RejectRetries:    "its replica failed, and too many requests were being tried again already",
	core.RejectHolder:     "the one place that holds the response it goes on from is gone",
	core.RejectRefused:    "every target refused it, and the client got the last answer",
	core.RejectKills:      "engines died while they served it or a request with the same fingerprint",
}

// because is the sentence for a reason; a word that is not known is shown as it is.
func because(sentences map[string]string, reason string) string {
	if s, ok := sentences[reason]; ok {
		return s
	}
	return fmt.Sprintf("%q", reason)
}

// whyChosen says why a policy chose the place that it chose.
func whyChosen(policyName, reason string) string {
	if reason == policy.ReasonOffload && traits(policyName).Regions {
		return "this peer was a better place than any replica of this balancer"
	}
	return because(chosenBecause, reason)
}

// traits are those of a policy by name; none where the name is not known here.
func traits(policyName string) policy.Traits {
	p, err := policy.New(policyName)
	if err != nil {
		return policy.Traits{}
	}
	return p.Traits()
}

// whyWaiting says why a request stays in a queue under a policy; keptFor is the
// replica that it was kept for when it came, if any.
func whyWaiting(policyName, keptFor string) string {
	if keptFor != "" {
		return "when it came, to wait for " + keptFor + ", which was full, cost less than to go to another place"
	}
	if traits(policyName).Holds {
		return "no place had room, or waiting for a full one cost less than going to another"
	}
	return "no place had room"
}

// noReplicaLeft is why a balancer gives a request back to the peer that it is of.
const noReplicaLeft = "no replica was left here"

// Why says in a few words why a request is where it is: why its place was chosen, why
// it was refused, or why it waits.
func Why(r telemetry.RequestSummary) string {
	refusal, refused := rejectedBecause[r.Reason]
	switch {
	case r.State == "queued":
		return whyWaiting(r.Policy, r.Target)
	case r.State == "bounced":
		return noReplicaLeft
	case refused:
		return refusal
	case r.Target == "" && r.Reason == "":
		return "its client left while it waited"
	}
	return whyChosen(r.Policy, r.Reason)
}
