package deploy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// maxFailures is the maximum number of recorded failures; there is one for each model and region.
const maxFailures = 50

// failureTTL is how long the last failure of a model and region is shown: until the next working day.
const failureTTL = 24 * time.Hour

// replicaRecord is the reconciler's record of launches and replicas, in the store. If it is lost, launches of the
// last hour are read from the machines, failures are forgotten, and starting replicas get the whole ready_timeout again.
type replicaRecord struct {
	provision.LaunchRecord
	// Seen are the existing replicas, by handle.
	Seen     map[string]seenReplica     `json:"seen"`
	Failures []telemetry.ReplicaFailure `json:"failures"`
}

// seenReplica is an existing replica.
type seenReplica struct {
	// FirstSeen is when it was first seen with the configuration whose hash is ConfigHash.
	FirstSeen  time.Time `json:"first"`
	ConfigHash string    `json:"config"`
	// WasReady is true once it has been ready.
	WasReady bool `json:"ready"`
	// AllGPUs is true once its driver has seen all GPUs of its machine type.
	AllGPUs bool `json:"all_gpus,omitempty"`
	// UnresponsiveSince is since when its process on this computer does not respond; zero = it responds, or it has a VM.
	UnresponsiveSince time.Time `json:"unresponsive,omitzero"`
	// UnhealthyReason is why it is taken out of service and terminated, from UnhealthySince on; empty = healthy.
	UnhealthyReason string        `json:"retired,omitempty"`
	UnhealthyKind   unhealthyKind `json:"retired_kind,omitempty"`
	UnhealthySince  time.Time     `json:"retired_at,omitzero"`
}

// unhealthyKind is the kind of an unhealthy replica; empty = healthy, or recorded by a version without kinds.
type unhealthyKind string

// The kinds.
const (
	unhealthyGPU      unhealthyKind = "gpu"       // a GPU of its machine has failed or is missing
	unhealthyNotReady unhealthyKind = "not_ready" // it was not ready in time
	unhealthyHung     unhealthyKind = "hung"      // its process does not respond
)

// unhealthyReplica is a replica that is to be taken out of service and terminated.
type unhealthyReplica struct {
	object provision.Object
	reason string
	// failed is true for a replica that never was ready: the next launch on its offering waits.
	failed bool
}

// healthInput is the input of replicaRecord.findUnhealthy.
type healthInput struct {
	spec *service.Spec
	// have are the objects of the regions that responded, known those of all regions.
	have, known []provision.Object
	seen        map[string]AgentReport
	// dead reports whether a machine that does not respond is the cause itself, and not the network.
	dead func(provision.Object) bool
	// exempt are replicas that are drained, donated or being removed anyway.
	exempt map[string]bool
	now    time.Time
	// typesWithAllGPUs are the machine types of which a driver has seen all GPUs; findUnhealthy sets it. Without this
	// evidence a missing GPU may be an error of the catalogue, which would make every replica unhealthy.
	typesWithAllGPUs map[string]bool
}

// findUnhealthy updates the record with an observation and returns the replicas to take out now: those with a fatal
// GPU error, those that were not ready in time, and processes that hang. It returns each replica once.
func (r *replicaRecord) findUnhealthy(in healthInput) (found []unhealthyReplica) {
	configs := configHashes(in.spec)
	r.RemoveOutdatedBackoffs(configs)
	r.AddObserved(in.have, in.now)
	r.Failures = slices.DeleteFunc(r.Failures, func(f telemetry.ReplicaFailure) bool { return in.now.Sub(f.At) > failureTTL })
	if r.Seen == nil {
		r.Seen = map[string]seenReplica{}
	}
	exists := map[string]bool{}
	for _, o := range in.known {
		exists[o.Handle] = o.TerminatedReason == ""
	}
	maps.DeleteFunc(r.Seen, func(handle string, _ seenReplica) bool { return !exists[handle] })
	in.typesWithAllGPUs = r.observeGPUs(in)
	for _, o := range in.have {
		if o.Kind != provision.KindReplica || o.TerminatedReason != "" || o.Handle == "" {
			continue
		}
		s := r.observeReplica(o, in.seen[o.ID], configs[o.Labels["model"]], in.now)
		if kind, reason := in.unhealthyReason(o, s); reason != "" && s.UnhealthyReason == "" {
			s.UnhealthyKind, s.UnhealthyReason, s.UnhealthySince = kind, reason, in.now
			found = append(found, unhealthyReplica{o, reason, !s.WasReady})
		}
		r.Seen[o.Handle] = s
	}
	return found
}

// observeReplica returns the entry of a replica after an observation. A changed configuration starts its
// ready_timeout again.
func (r *replicaRecord) observeReplica(o provision.Object, report AgentReport, config string, now time.Time) seenReplica {
	s, known := r.Seen[o.Handle]
	if !known || s.ConfigHash != config {
		s.FirstSeen, s.ConfigHash = now, config
	}
	if report.Err == nil && report.Phase == agent.PhaseReady && !s.WasReady {
		s.WasReady = true
		r.AddSuccess(backoffKeyOf(o))
	}
	switch {
	case !cloud.RunsOnThisComputer(o.Region) || !isUnreachable(report.Err):
		s.UnresponsiveSince = time.Time{}
	case s.UnresponsiveSince.IsZero():
		s.UnresponsiveSince = now
	}
	return s
}

// observeGPUs records the replicas whose drivers see all GPUs, and returns the machine types that
// have such a replica, now or before.
func (r *replicaRecord) observeGPUs(in healthInput) map[string]bool {
	complete := map[string]bool{}
	for _, o := range in.have {
		s, known := r.Seen[o.Handle]
		if report := in.seen[o.ID]; report.Err == nil && report.GPUs != nil && *report.GPUs >= gpuCountOf(o) {
			s.AllGPUs = true
			if known {
				r.Seen[o.Handle] = s
			}
		}
		if s.AllGPUs {
			complete[machineTypeOf(o)] = true
		}
	}
	return complete
}

// machineTypeOf returns the machine type of an object; empty if it is unknown.
func machineTypeOf(o provision.Object) string {
	if o.Offering == nil {
		return ""
	}
	return o.Offering.Type
}

// unhealthyReason returns why a replica is taken out, with the kind; empty = it stays.
func (in *healthInput) unhealthyReason(o provision.Object, s seenReplica) (unhealthyKind, string) {
	report, polled := in.seen[o.ID]
	answered := polled && report.Err == nil
	switch timeout := in.spec.ReadyTimeoutOf(o.Labels["model"]); {
	case answered && report.Phase == agent.PhaseInterrupted:
		return "", "" // its cloud interrupts it
	case answered && report.GPUError != "":
		return unhealthyGPU, "fatal GPU error: " + report.GPUError
	case answered && report.GPUs != nil && *report.GPUs < gpuCountOf(o) && in.typesWithAllGPUs[machineTypeOf(o)]:
		return unhealthyGPU, fmt.Sprintf("GPU missing: its machine has %d GPUs, its driver sees %d", gpuCountOf(o), *report.GPUs)
	case in.isHung(o, s):
		return unhealthyHung, fmt.Sprintf("no response for %s", in.now.Sub(s.UnresponsiveSince).Round(time.Second))
	case s.WasReady || in.exempt[o.ID] || in.now.Sub(s.FirstSeen) < timeout:
		return "", ""
	case answered:
		return unhealthyNotReady, fmt.Sprintf("not ready within %s: %s", timeout, cmp.Or(report.Reason, string(report.Phase)))
	case in.dead(o):
		return unhealthyNotReady, fmt.Sprintf("not ready within %s: its agent does not respond", timeout)
	}
	return "", ""
}

// isHung reports whether a replica's process on this computer does not respond: another one serves within seconds. A VM
// that does not respond waits for `up`, because a replacement is billed and downloads the weights again.
func (in *healthInput) isHung(o provision.Object, s seenReplica) bool {
	return !in.exempt[o.ID] && !s.UnresponsiveSince.IsZero() && in.now.Sub(s.UnresponsiveSince) >= unresponsiveTimeout && in.dead(o)
}

// backoffKeyOf returns the key of launches on a replica's offering.
func backoffKeyOf(o provision.Object) provision.BackoffKey {
	offering := provision.Offering{Region: o.Region}
	if o.Offering != nil {
		offering = *o.Offering
	}
	return provision.BackoffKeyOf(o.Labels["model"], offering)
}

// configHashes returns the hash of each model's configuration.
func configHashes(spec *service.Spec) map[string]string {
	hashes := map[string]string{}
	for _, m := range spec.Models {
		hash, err := provision.ConfigHash(m)
		if err == nil { // a model is always encodable
			hashes[m.Name] = hash
		}
	}
	return hashes
}

// addFailure records an unhealthy replica with the last lines of its log.
func (r *replicaRecord) addFailure(of unhealthyReplica, config string, lines []string, now time.Time) {
	o := of.object
	if of.failed {
		r.AddFailure(provision.Backoff{BackoffKey: backoffKeyOf(o), Last: now, ID: o.ID, Reason: of.reason, Config: config}, provision.FailureBackoff)
	}
	f := telemetry.ReplicaFailure{At: now.UTC(), Replica: o.ID, Model: o.Labels["model"], Region: o.Region, Reason: of.reason, Log: append([]string{}, lines...)}
	if o.Offering != nil {
		f.Offering = o.Offering.String()
	}
	r.Failures = slices.DeleteFunc(r.Failures, func(old telemetry.ReplicaFailure) bool { return old.Model == f.Model && old.Region == f.Region })
	r.Failures = slices.Insert(r.Failures, 0, f)
	r.Failures = r.Failures[:min(len(r.Failures), maxFailures)]
}

// unhealthy returns the reasons of the replicas that are being taken out, by ID.
func (r *replicaRecord) unhealthy(have []provision.Object) map[string]seenReplica {
	ids := map[string]seenReplica{}
	for _, o := range have {
		if s := r.Seen[o.Handle]; s.UnhealthyReason != "" && o.TerminatedReason == "" {
			ids[o.ID] = s
		}
	}
	return ids
}

// launchesOf returns the state for people: the bounds, what is held, and what waits.
func (r *replicaRecord) launchesOf(bounds provision.LaunchBounds, known []provision.Object, held []string, now time.Time) *telemetry.Launches {
	l := &telemetry.Launches{
		LastHour: len(r.LastHour(now)), MaxPerHour: bounds.LaunchesPerHour, CostPerHour: r.CostPerHour(known, now), BudgetPerHour: bounds.BudgetPerHour,
		Held: append([]string{}, held...), Backoffs: []telemetry.LaunchBackoff{}, Failures: append([]telemetry.ReplicaFailure{}, r.Failures...),
	}
	for i := range r.Backoffs {
		b := &r.Backoffs[i]
		offering := b.Type
		if offering != "" {
			offering = string(b.Capacity) + " " + offering
		}
		l.Backoffs = append(l.Backoffs, telemetry.LaunchBackoff{Model: b.Model, Region: b.Region, Offering: offering, Failures: b.Failures, NextTry: b.Next.UTC(), Reason: b.Reason, Line: b.Describe()})
	}
	return l
}
