package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// A machine that its cloud recommends to leave is likely to be taken, sooner or later, at the
// same short notice as any other. It is replaced at leisure where replicas.max leaves room for
// another beside it: it serves until that one does, and is given back once it is empty.

// advised are the replicas that serve and that their cloud recommends to leave.
func advised(have []provision.Object, seen map[string]Seen) map[string]bool {
	ids := map[string]bool{}
	for _, o := range have {
		if s := seen[o.ID]; o.Kind == provision.KindReplica && s.Err == nil && s.Phase == agent.PhaseReady && !s.AdvisedAt.IsZero() {
			ids[o.ID] = true
		}
	}
	return ids
}

// adviceRest is how long a machine that was launched in the place of another is not left because
// of advice. A cloud that is short of machines gives it for new ones too, and to heed it at once
// would launch one after the other, each for as long as the next one takes to load its weights.
const adviceRest = 30 * time.Minute

// overdue are the replicas that are advised to leave, and whose adviceRest is over.
func (k *Reconciler) overdue(s *observation, seen map[string]Seen) map[string]bool {
	ids, since := advised(s.have, seen), map[string]time.Time{}
	for _, o := range s.all() {
		if cloud.Instead(o) == "" {
			continue
		}
		first, known := k.since[o.Handle]
		if !known {
			first = time.Now()
		}
		since[o.Handle] = first
		if time.Since(first) < adviceRest {
			delete(ids, o.ID)
		}
	}
	k.since = since
	return ids
}

// release gives back machines that were replaced, or that stood in for others and need not any
// more, once they are empty. That counts only
// when no balancer of their region used them at the look before: what one sent a moment
// before it was told may not have come in yet.
func (k *Reconciler) release(ctx context.Context, o *opened, s *observation, seen map[string]Seen, deployments map[string]agent.Deployment, may func() error) error {
	told := map[string]bool{}
	var empty []string
	over := replaced(s.have, seen)
	maps.Copy(over, k.surplus)
	for id := range over {
		told[id] = unused(id, s.have, seen, deployments)
		if told[id] && k.told[id] && seen[id].InFlight == 0 {
			empty = append(empty, id)
		}
	}
	k.told = told
	if len(empty) == 0 {
		return nil
	}
	if err := may(); err != nil {
		return err
	}
	return k.remove(ctx, o, s.have, empty, "another serves in its place")
}

// unused says whether all balancers of a replica's region run what they are to, which is
// without it.
func unused(id string, have []provision.Object, seen map[string]Seen, deployments map[string]agent.Deployment) bool {
	at := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == id })
	return at >= 0 && !slices.ContainsFunc(have, func(b provision.Object) bool {
		if b.Kind != provision.KindBalancer || b.Gone != "" || b.Region != have[at].Region {
			return false
		}
		d, known := deployments[b.ID]
		return !known || seen[b.ID].Phase != agent.PhaseReady || seen[b.ID].Revision != d.Revision
	})
}
