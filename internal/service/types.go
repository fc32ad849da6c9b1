package service

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Tier is the latency class of a request (SageServe section 3). It determines the queue order and
// whether a request may be deferred.
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

// MoreUrgentThan reports whether t is more urgent than another tier. It returns false if one of them
// is unknown.
func (t Tier) MoreUrgentThan(other Tier) bool {
	all := Tiers()
	i, j := slices.Index(all, t), slices.Index(all, other)
	return i >= 0 && i < j
}

// tierWords are the words for tiers, which are accepted beside SageServe's abbreviations.
var tierWords = map[Tier]string{TierFast: "fast", TierNormal: "normal", TierDeferred: "deferred"}

// Word returns the word for the tier: fast, normal or deferred. It returns any other text unchanged.
func (t Tier) Word() string { return cmp.Or(tierWords[t], string(t)) }

// ParseTier parses a tier in any case, as a word or as an abbreviation. An empty string is TierFast, the default
// tier of a request. Any other value is an error.
func ParseTier(s string) (Tier, error) {
	if s == "" {
		return TierFast, nil
	}
	for _, t := range Tiers() {
		if strings.EqualFold(s, string(t)) || strings.EqualFold(s, t.Word()) {
			return t, nil
		}
	}
	return "", fmt.Errorf("unknown tier %q: must be fast (IW-F), normal (IW-N) or deferred (NIW)", s)
}

// Region is a region in which replicas run, as cloud/place: aws/us-east-1, gcp/europe-west4,
// static/paris, local/us.
type Region string

// AnyRegion is the region of a history without regions.
const AnyRegion Region = "all"

// AnyModel is the model of a history without models.
const AnyModel = "all"

// Cloud returns the part before the slash: aws, gcp, static or local.
func (r Region) Cloud() string {
	cloud, _, _ := strings.Cut(string(r), "/")
	return cloud
}

// ShortName returns the part after the slash: the cloud's own name of the region.
func (r Region) ShortName() string {
	_, short, found := strings.Cut(string(r), "/")
	if !found {
		return string(r)
	}
	return short
}

// ReplicaState is the lifecycle state of a replica, or of a balancer (see StateUnreachable). Every state but StateReady
// has a reason.
type ReplicaState string

// The states of a replica.
const (
	StatePending      ReplicaState = "PENDING"       // desired, not started yet
	StateProvisioning ReplicaState = "PROVISIONING"  // its VM or process is being created
	StateStarting     ReplicaState = "STARTING"      // running; the model is not ready yet
	StateReady        ReplicaState = "READY"         // the model serves requests
	StateNotReady     ReplicaState = "NOT_READY"     // was ready, now fails its health check or has no balancer
	StateDraining     ReplicaState = "DRAINING"      // completes requests in flight, receives no new ones
	StateDonated      ReplicaState = "DONATED"       // donated to other work; receives no requests
	StateInterrupted  ReplicaState = "INTERRUPTED"   // its VM has an interruption notice
	StateShuttingDown ReplicaState = "SHUTTING_DOWN" // being removed
	StateFailed       ReplicaState = "FAILED"        // could not be started, or its machine has ended
)

// Misconfiguration is which part of the configuration a replica's engine does not accept; empty if it accepts all, or if that
// is unknown.
type Misconfiguration string

// The misconfigurations that health checks find.
const (
	MisconfiguredModel Misconfiguration = "model"   // the engine serves other models
	MisconfiguredKey   Misconfiguration = "api_key" // the engine rejects the API key, or requires one
)

// The clouds of regions.
const (
	CloudAWS    = "aws"
	CloudGCP    = "gcp"
	CloudStatic = "static" // existing machines
	CloudLocal  = "local"  // processes on this machine
)

// Rented reports whether the region's machines are billed by the hour.
func (r Region) Rented() bool { return r.Cloud() == CloudAWS || r.Cloud() == CloudGCP }

// Donates reports whether an excess replica of a region is donated to other work, not removed. Machines of
// static regions are always kept, and rented ones are always returned to the cloud.
func (a Autoscale) Donates(region Region) bool {
	switch region.Cloud() {
	case CloudStatic:
		return true
	case CloudLocal:
		return a.Donate
	}
	return false
}
