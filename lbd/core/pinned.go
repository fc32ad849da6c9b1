package core

// pinKnown reports whether the target that r is pinned to exists and serves its model, even if it is not live now.
// It is true for a request that any target can serve.
func (b *Balancer) pinKnown(r *request) bool {
	if r.PinnedTo == "" {
		return true
	}
	if t := findTarget(b.replicas, r.PinnedTo); t != nil {
		return t.model == r.Model
	}
	t := findTarget(b.peers, r.PinnedTo)
	return t != nil && b.mayForward(r, t)
}

// needsOtherTarget reports whether r is pinned to another target than t.
func (r *request) needsOtherTarget(t *target) bool { return r.PinnedTo != "" && r.PinnedTo != t.id }

// restricted reports whether r may be sent to fewer targets than other requests. Requests behind it
// do not have to wait with it.
func (r *request) restricted() bool {
	return r.Hop != HopNone || len(r.avoid) > 0 || r.PinnedTo != "" || r.suspected()
}
