package sim

import "fmt"

// audit holds a run that has ended to the laws of a world in which nothing is
// lost and nothing comes from nowhere. A run that breaks one has no result.
func (w *world) audit() error {
	if w.breach != nil {
		return w.breach
	}
	for _, n := range w.nodes {
		if err := auditNode(w, n); err != nil {
			return err
		}
	}
	for _, r := range w.replicas {
		if err := auditReplica(r); err != nil {
			return err
		}
		for _, seen := range r.node.core.View(w.now).Replicas {
			if made := r.load().GeneratedTokens; seen.ID == r.id && seen.Tokens > made {
				return fmt.Errorf("replica %s: its balancer heard of %d tokens, but %d were generated", r.id, seen.Tokens, made)
			}
		}
	}
	return w.auditClients()
}

// auditNode: arrived = finished + rejected + cancelled + bounced + queued +
// outstanding + what died with it, and what is here is what the balancer counts as here.
func auditNode(w *world, n *node) error {
	c := n.counts(w.now)
	here := int64(c.Queued + c.Outstanding)
	if c.Arrived != c.Finished+c.Rejected+c.Cancelled+c.Bounced+here+n.lost {
		return fmt.Errorf("balancer %s: %d requests arrived and %d died with it, but %+v", n.id, c.Arrived, n.lost, c)
	}
	if here != int64(len(n.legs)) {
		return fmt.Errorf("balancer %s: %d requests are here, but it counts %d queued and %d outstanding", n.id, len(n.legs), c.Queued, c.Outstanding)
	}
	return nil
}

// auditReplica: submitted = finished + cancelled + rejected + pending + running
// + what died with it, and what is in the engine is what was sent there.
func auditReplica(r *replica) error {
	l := r.load()
	here := int64(l.Pending + l.Running)
	if l.Submitted != l.Finished+l.Cancelled+l.Rejected+here+r.lost {
		return fmt.Errorf("replica %s: %d requests submitted and %d died with it, but %+v", r.id, l.Submitted, r.lost, l)
	}
	if here != int64(len(r.jobs)) {
		return fmt.Errorf("replica %s: %d requests are there, but it counts %d pending and %d running", r.id, len(r.jobs), l.Pending, l.Running)
	}
	return nil
}

// auditClients: no client got more ends than it sent requests, no balancer saw
// more requests than were sent to it, and none ended more often there than at
// the engines.
func (w *world) auditClients() error {
	t := &w.tally
	if ended := t.done + t.failures + t.cancelled + t.lost; ended > t.issued {
		return fmt.Errorf("clients: %d requests ended of %d issued", ended, t.issued)
	}
	var arrived, in, out, finishedHere, finished int64
	for _, n := range w.nodes {
		c := n.counts(w.now)
		arrived, in, out = arrived+c.Arrived, in+c.ForwardedIn, out+c.ForwardedOut
		finishedHere += c.Finished
	}
	for _, r := range w.replicas {
		finished += r.load().Finished
	}
	switch {
	case arrived-in > int64(t.issued):
		return fmt.Errorf("balancers: %d requests came from clients, which issued %d", arrived-in, t.issued)
	case in > out:
		return fmt.Errorf("balancers: %d requests came from peers, which forwarded %d", in, out)
	case finishedHere > finished+in:
		return fmt.Errorf("balancers: %d requests finished there, %d of them forwarded, but %d at the replicas", finishedHere, in, finished)
	case int64(t.done) > finished:
		return fmt.Errorf("clients: %d answers came of %d that engines gave", t.done, finished)
	}
	return nil
}
