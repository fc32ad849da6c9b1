package explain

import (
	"fmt"

	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// chosenBecause describes each policy's reason for its choice.
var chosenBecause = map[string]string{
	policy.ReasonRotation:      "next in rotation",
	policy.ReasonLeastLoad:     "fewest outstanding requests",
	policy.ReasonPrefixMatch:   "longest cached prefix",
	policy.ReasonPrefixMiss:    "no sufficient prefix match; least loaded",
	policy.ReasonForward:       "no local replica available; forwarded to a peer with capacity",
	policy.ReasonPowerOfTwo:    "better of two candidates",
	policy.ReasonSession:       "session affinity (hash ring)",
	policy.ReasonImbalance:     "load too imbalanced for prefix routing; least loaded",
	policy.ReasonRemaining:     "fewest remaining tokens",
	policy.ReasonLeastCost:     "lowest cost in seconds",
	policy.ReasonLowestProduct: "lowest product of prompt tokens to compute and requests",
	policy.ReasonLowestTTFT:    "lowest estimated time to the first token",
	policy.ReasonScorerSum:     "highest sum of prefix match and shortness of the queue",
	policy.ReasonSaturated:     "every candidate is saturated; least loaded",
	policy.ReasonBalance:       "balances the load of the data-parallel ranks",
	// No choice has this reason today, but a record may be from a newer version.
	policy.ReasonNoneAvailable: "no target available",
}

// rejectedBecause describes each of the core's reasons for a rejection.
var rejectedBecause = map[string]string{
	core.RejectDuplicate:        "a request with this id was already in flight",
	core.RejectNoReplica:        "no replica serves the model, here or at a peer",
	core.RejectNoAdapter:        "no replica serves the adapter, here or at a peer",
	core.RejectQueueFull:        "the queue was full",
	core.RejectWaitExceeded:     "no capacity within the maximum queue time",
	core.RejectStartExceeded:    "no replica of the model became ready within balancer.max_cold_wait",
	core.RejectFailed:           "its replica failed after part of the response was sent",
	core.RejectRetriesExhausted: "maximum number of attempts reached",
	core.RejectRetryBudget:      "its replica failed and the retry budget was exhausted",
	core.RejectPinnedGone:       "the only target that stores the previous response was removed",
	core.RejectRefused:          "every target rejected it; the client received the last response",
	core.RejectKills:            "engines died while serving it or an identical request",
}

// because returns the description of a reason; an unknown reason is quoted.
func because(sentences map[string]string, reason string) string {
	if s, ok := sentences[reason]; ok {
		return s
	}
	return fmt.Sprintf("%q", reason)
}

// whyChosen describes why a policy chose its target.
func whyChosen(policyName, reason string) string {
	if reason == policy.ReasonPrefixMiss && choosesSmallestCache(policyName) {
		return "no sufficient prefix match; smallest cache"
	}
	if reason == policy.ReasonForward && traits(policyName).Peers {
		return "no local replica available, or this peer is preferred"
	}
	return because(chosenBecause, reason)
}

// traits returns the traits of a policy by name; none if the name is unknown.
func traits(policyName string) policy.Traits {
	p, err := policy.New(policyName)
	if err != nil {
		return policy.Traits{}
	}
	return p.Traits()
}

// choosesSmallestCache reports whether a policy sends requests without a match to the replica with the smallest cache.
func choosesSmallestCache(policyName string) bool {
	p, _ := policy.New(policyName) // nil if the name is unknown
	_, is := p.(*policy.CacheAware)
	return is
}

// whyWaiting describes why a request stays queued under a policy. keptFor is the replica that it
// was held for on arrival, if any; cold means that its model had no replica, sharedPrefill that another
// request's prompt was to be computed first.
func whyWaiting(policyName, keptFor string, cold, sharedPrefill bool) string {
	switch {
	case cold:
		return waitsForStart
	case sharedPrefill:
		return waitsForPrefill
	}
	if keptFor != "" {
		return keptFor + ", though full, was expected to be faster than any other target"
	}
	if traits(policyName).Holds {
		return "no capacity, or waiting for a full replica was expected to be faster"
	}
	return "no capacity"
}

// waitsForStart is why a request of a model that scales to zero is queued.
const waitsForStart = "the model had no replica, waiting for one to start"

// waitsForPrefill is why a request is queued whose prompt begins like one that its replica computes.
const waitsForPrefill = "its replica computed the beginning of its prompt for another request first"

// noLiveReplica is the reason for which a balancer returns a request to the peer that forwarded it.
const noLiveReplica = "no live replica here"

// Why briefly describes the state of a request: why its target was chosen, why it was rejected, or
// why it is queued.
func Why(r telemetry.RequestSummary) string {
	rejection, rejected := rejectedBecause[r.Reason]
	switch {
	case r.State == "queued":
		return whyWaiting(r.Policy, r.Target, r.Reason == core.QueuedForStart, r.Reason == core.QueuedForPrefill)
	case r.State == "bounced":
		return noLiveReplica
	case rejected:
		return rejection
	case r.Target == "" && r.Reason == "":
		return "client disconnected while queued"
	}
	return whyChosen(r.Policy, r.Reason)
}
