package service

import (
	"fmt"
	"slices"
	"strings"
)

// Tier is the class of latency that a request asks for (SageServe section 3).
// It decides queue order and which capacity may be lent away.
type Tier string

// The tiers, from the most to the least urgent.
const (
	// TierFast (IW-F) is interactive work whose first token is due within a second.
	TierFast Tier = "IW-F"
	// TierNormal (IW-N) is interactive work that tolerates up to a minute.
	TierNormal Tier = "IW-N"
	// TierDeferred (NIW) is batch work with a deadline of hours.
	TierDeferred Tier = "NIW"
)

// Tiers lists every tier, most urgent first.
func Tiers() []Tier { return []Tier{TierFast, TierNormal, TierDeferred} }

// Above says whether t is more urgent than another tier; one that is not known is
// above none and below none.
func (t Tier) Above(other Tier) bool {
	all := Tiers()
	i, j := slices.Index(all, t), slices.Index(all, other)
	return i >= 0 && i < j
}

// ParseTier reads a tier as users write it, in any case. An empty string is
// TierFast, the tier of a request that says nothing. Any other word is an error.
func ParseTier(s string) (Tier, error) {
	if s == "" {
		return TierFast, nil
	}
	for _, t := range Tiers() {
		if strings.EqualFold(s, string(t)) {
			return t, nil
		}
	}
	return "", fmt.Errorf("unknown tier %q: want IW-F, IW-N or NIW", s)
}

// Region names a place that replicas run in, as cloud/place: aws/us-east-1,
// gcp/europe-west4, static/paris, local/us.
type Region string

// AnyRegion stands for the region of a history that names none.
const AnyRegion Region = "all"

// Cloud is the part before the slash: aws, gcp, static or local.
func (r Region) Cloud() string {
	cloud, _, _ := strings.Cut(string(r), "/")
	return cloud
}

// Place is the part after the slash: what the cloud itself calls the region.
func (r Region) Place() string {
	_, place, found := strings.Cut(string(r), "/")
	if !found {
		return string(r)
	}
	return place
}

// ReplicaState is where a replica stands in its life. Every state that is not
// StateReady travels with a reason in words.
type ReplicaState string

// The states of a replica.
const (
	StatePending      ReplicaState = "PENDING"       // wanted, nothing started yet
	StateProvisioning ReplicaState = "PROVISIONING"  // the cloud is making its VM or process
	StateStarting     ReplicaState = "STARTING"      // it runs; its model does not answer yet
	StateReady        ReplicaState = "READY"         // its model answers
	StateNotReady     ReplicaState = "NOT_READY"     // it answered once and does not now
	StateDraining     ReplicaState = "DRAINING"      // finishes what it has, gets nothing new
	StateDonated      ReplicaState = "DONATED"       // lent to the spot pool
	StateInterrupted  ReplicaState = "INTERRUPTED"   // the cloud takes its VM away
	StateShuttingDown ReplicaState = "SHUTTING_DOWN" // is being removed
	StateFailed       ReplicaState = "FAILED"        // could not be brought up
)

// The clouds that a region can be in.
const (
	CloudAWS    = "aws"
	CloudGCP    = "gcp"
	CloudStatic = "static" // machines that are already there
	CloudLocal  = "local"  // processes of this machine
)

// rented says whether replicas of the region cost money by the hour.
func (r Region) rented() bool { return r.Cloud() == CloudAWS || r.Cloud() == CloudGCP }
