package core

// heldRequests says whether r's holder is known and serves its model, be it that it
// does not answer just now; true for a request that any target can serve.
func (b *Balancer) holderKnown(r *request) bool {
	if r.Holder == "" {
		return true
	}
	if t := findTarget(b.replicas, r.Holder); t != nil {
		return t.model == r.Model
	}
	t := findTarget(b.peers, r.Holder)
	return t != nil && b.mayForward(r, t)
}

// needsOtherTarget says whether t is not the one that holds what r goes on from.
func (r *request) needsOtherTarget(t *target) bool { return r.Holder != "" && r.Holder != t.id }

// restricted says whether r may not go wherever others may: that it has to wait
// does not mean that those behind it must.
func (r *request) restricted() bool {
	return r.Hop != HopNone || len(r.avoid) > 0 || r.Holder != "" || r.suspected()
}
