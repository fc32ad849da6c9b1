package sim

import "fmt"

// audit checks the invariants of a finished run: requests neither vanish nor appear from
// nowhere. A run that violates one has no result.
func (w *world) audit() error {
	if w.violation != nil {
		return w.violation
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
		for _, seen := range r.node.core.Snapshot(w.now).Replicas {
			if made := r.load().GeneratedTokens; seen.ID == r.id && seen.Tokens > made {
				return fmt.Errorf("replica %s: its balancer received %d tokens, but %d were generated", r.id, seen.Tokens, made)
			}
		}
	}
	return w.auditClients()
}

// auditNode checks arrived = finished + rejected + cancelled + bounced + queued + outstanding + lost
// with the balancer, and that the balancer's counts match the requests at it.
func auditNode(w *world, n *node) error {
	c := n.counts(w.now)
	here := int64(c.Queued + c.Outstanding)
	if c.Arrived != c.Finished+c.Rejected+c.Cancelled+c.Bounced+here+n.lost {
		return fmt.Errorf("balancer %s: %d requests arrived and %d were lost with it, but counts are %+v", n.id, c.Arrived, n.lost, c)
	}
	if here != int64(len(n.legs)) {
		return fmt.Errorf("balancer %s: has %d requests, but counts %d queued and %d outstanding", n.id, len(n.legs), c.Queued, c.Outstanding)
	}
	return nil
}

// auditReplica checks submitted = finished + cancelled + rejected + pending + running + lost with the
// replica, and that the engine's counts match the requests sent to it.
func auditReplica(r *replica) error {
	l := r.load()
	here := int64(l.Pending + l.Running)
	if l.Submitted != l.Finished+l.Cancelled+l.Rejected+here+r.lost {
		return fmt.Errorf("replica %s: %d requests submitted and %d were lost with it, but load is %+v", r.id, l.Submitted, r.lost, l)
	}
	if here != int64(len(r.jobs)) {
		return fmt.Errorf("replica %s: has %d requests, but counts %d pending and %d running", r.id, len(r.jobs), l.Pending, l.Running)
	}
	return nil
}

// auditClients checks that no more requests ended than clients sent, that balancers received no more
// requests than were sent to them, and that no more requests finished at balancers than at the engines.
func (w *world) auditClients() error {
	t := &w.tally
	if ended := t.completed + t.failures + t.cancelled + t.lost; ended > t.issued {
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
		return fmt.Errorf("balancers: received %d requests from clients, which issued %d", arrived-in, t.issued)
	case in > out:
		return fmt.Errorf("balancers: received %d requests from peers, which forwarded %d", in, out)
	case finishedHere > finished+in:
		return fmt.Errorf("balancers: finished %d requests, %d of them forwarded, but replicas finished %d", finishedHere, in, finished)
	case int64(t.completed) > finished:
		return fmt.Errorf("clients: received %d responses, but engines finished %d", t.completed, finished)
	}
	return nil
}
