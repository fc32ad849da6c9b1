package core

import (
	"slices"
	"time"

	"skyserve/lbd/policy"
)

// An engine serves a model under its own name and LoRA adapters under further names. Adapters are loaded
// and unloaded at run time, so the replicas of one model may serve different ones. A request that needs an
// adapter is never sent to a target that is known to lack it: an engine rejects such a request within
// a millisecond, so it would look like the least loaded one.

const (
	// maxRefused bounds the adapters that a replica rejected since its last list.
	maxRefused = 64
	// maxReportedAdapters bounds the adapters of one model in a heartbeat: about 30 KB. With more, a peer
	// assumes that all of them are served.
	maxReportedAdapters = 1024
)

// servedNames contains the names that a target serves and lacks, as far as known.
type servedNames struct {
	names   []string // the engine's last list, sorted; nil = unknown, and for a peer
	refused []string // adapters that the engine rejected since then, or the peer since its last report, oldest first
}

// lacks reports whether an adapter is known not to be served.
func (s *servedNames) lacks(adapter string) bool {
	if slices.Contains(s.refused, adapter) {
		return true
	}
	if s.names == nil {
		return false
	}
	_, listed := slices.BinarySearch(s.names, adapter)
	return !listed
}

// refuse records that the target rejected an adapter.
func (s *servedNames) refuse(adapter string) {
	if slices.Contains(s.refused, adapter) {
		return
	}
	if len(s.refused) >= maxRefused {
		s.refused = slices.Delete(s.refused, 0, 1)
	}
	s.refused = append(s.refused, adapter)
}

// lacksAdapter reports whether t is known not to serve r's adapter.
func (t *target) lacksAdapter(r *request) bool { return r.Adapter != "" && t.lacksRequiredAdapter(r) }

// lacksRequiredAdapter is lacksAdapter for a request that needs one; lacksAdapter is inlined.
func (t *target) lacksRequiredAdapter(r *request) bool {
	if t.served.lacks(r.Adapter) {
		return true
	}
	if !t.peer {
		return false
	}
	l := t.modelLoad(r.Model)
	if l == nil || !l.Adapters.Known {
		return false
	}
	_, listed := slices.BinarySearch(l.Adapters.Value, r.Adapter)
	return !listed
}

// setServedNames replaces the list of the names that a replica serves. An adapter that the engine rejected
// before counts as served again if the engine lists it, or does not list adapters.
func (b *Balancer) setServedNames(now time.Duration, id string, names []string) {
	t := findTarget(b.replicas, id)
	if t == nil {
		return
	}
	t.served = servedNames{}
	if len(names) > 0 {
		t.served.names = slices.Compact(slices.Sorted(slices.Values(names)))
	}
	b.rejectUnknown(now)
	b.bounceStranded(now)
	b.placeWaiting(now, b.queue(t.model))
}

// markAdapterMissing records that t does not serve the adapter of r, which it rejected for that reason. All
// ranks of an engine serve the same adapters. It returns false if the rejection has another reason.
func (b *Balancer) markAdapterMissing(t *target, r *request, out *Outcome) bool {
	if t.peer || r.Adapter == "" || out == nil || !out.LacksModel {
		return false
	}
	t.served.refuse(r.Adapter) // t may have been removed
	for _, o := range b.replicas {
		if o.engine == t.engine {
			o.served.refuse(r.Adapter)
		}
	}
	return true
}

// adapterKnown reports whether a target may serve r's adapter, now or later. It is true for a request
// without an adapter. If some replicas lack the adapter, a replica that has not listed its adapters counts
// only while it is live: one that never responds must not delay the rejection.
func (b *Balancer) adapterKnown(now time.Duration, r *request) bool {
	if r.Adapter == "" {
		return true
	}
	unlisted, lacking := false, false
	for _, t := range b.replicas {
		switch {
		case t.model != r.Model || r.needsOtherTarget(t):
		case t.lacksAdapter(r):
			lacking = true
		case t.served.names != nil || t.live(now, &b.cfg):
			return true
		default:
			unlisted = true
		}
	}
	for _, t := range b.peers {
		if l := t.modelLoad(r.Model); l != nil && l.Replicas > 0 && b.mayForward(r, t) && !r.needsOtherTarget(t) && !t.lacksAdapter(r) {
			return true
		}
	}
	return unlisted && !lacking
}

// adapterDiffers reports whether some replicas of r's model lack r's adapter. If so, requests behind r may overtake it.
func (b *Balancer) adapterDiffers(r *request) bool {
	if r.Adapter == "" {
		return false
	}
	for _, t := range b.replicas {
		if t.model == r.Model && t.lacksAdapter(r) {
			return true
		}
	}
	return b.cfg.ScaleToZero[r.Model] && !b.modelAttached(r.Model) // its first replica may load the adapter
}

// reportedAdapters returns the adapters that the live replicas of a model serve, sorted; unknown if one of
// the replicas may serve others.
func (b *Balancer) reportedAdapters(now time.Duration, model string) policy.Maybe[[]string] {
	var union []string
	known := false
	for _, t := range b.replicas {
		if t.model != model || t.draining || !t.live(now, &b.cfg) {
			continue
		}
		if t.served.names == nil {
			return policy.Maybe[[]string]{}
		}
		known = true
		for _, name := range t.served.names {
			if name == model || slices.Contains(t.served.refused, name) {
				continue
			}
			if at, found := slices.BinarySearch(union, name); !found {
				union = slices.Insert(union, at, name)
			}
		}
	}
	if !known || len(union) > maxReportedAdapters {
		return policy.Maybe[[]string]{}
	}
	if union == nil {
		union = []string{} // null means unknown
	}
	return policy.Known(union)
}
