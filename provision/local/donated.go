package local

import (
	"cmp"
	"fmt"
	"slices"

	"skyserve/internal/service"
)

// Donated is a replica that is lent to the spot pool: it runs, and the service
// sends it nothing. replicas.max counts it, replicas.min does not.
type Donated struct {
	ID string `json:"id"`
	service.Donation
}

// ModelUnknownError is a replica of a static region of which service.yaml does not
// say what it serves, so that no bounds can be held.
type ModelUnknownError struct{ ID string }

// Error names the replica.
func (e *ModelUnknownError) Error() string {
	return fmt.Sprintf("%s: which model it serves is not known here, because the service has several", e.ID)
}

// NoReplicaError is an id that no replica of the service has.
type NoReplicaError struct{ ID string }

// Error names the id.
func (e *NoReplicaError) Error() string { return fmt.Sprintf("the service has no replica %q", e.ID) }

// IsDonated tells whether a replica is lent.
func (w Wanted) IsDonated(id string) bool { return w.Donation(id) != nil }

// Donation is for how long a replica is lent; nil where it is not.
func (w Wanted) Donation(id string) *service.Donation {
	for i := range w.Donated {
		if w.Donated[i].ID == id {
			return &w.Donated[i].Donation
		}
	}
	return nil
}

// WithDonated is w with a replica lent that was not; one that is stays as it is. It
// fails with *BoundsError where too few would serve, and with *NoReplicaError and
// *ModelUnknownError. attached are the replicas of static regions.
func (w Wanted) WithDonated(spec *service.Spec, attached map[service.Region][]service.ReplicaConfig, id string, d service.Donation) (Wanted, error) {
	if w.IsDonated(id) {
		return w, nil
	}
	model, region, ids, err := w.groupOf(spec, attached, id)
	if err != nil {
		return w, err
	}
	b, serve := spec.BoundsFor(model, region), len(w.Serving(ids))-1
	if serve < b.Min {
		return w, &BoundsError{model, region, serve, b}
	}
	w = w.WithDrained(id, false)
	w.Donated = append(slices.Clone(w.Donated), Donated{id, d})
	slices.SortFunc(w.Donated, func(a, b Donated) int { return cmp.Compare(a.ID, b.ID) })
	return w, nil
}

// Reclaimed is w with a replica taken back from the spot pool.
func (w Wanted) Reclaimed(id string) Wanted {
	w.Donated = slices.DeleteFunc(slices.Clone(w.Donated), func(d Donated) bool { return d.ID == id })
	return w
}

// Serving is those of some ids that are not lent.
func (w Wanted) Serving(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), w.IsDonated)
}

// groupOf finds the model and region of a replica, and the ids of all of both.
func (w Wanted) groupOf(spec *service.Spec, attached map[service.Region][]service.ReplicaConfig, id string) (model string, region service.Region, ids []string, err error) {
	for _, r := range spec.Regions {
		for i := range spec.Models {
			if ids := w.IDsOf(spec, spec.Models[i].Name, r.Name); slices.Contains(ids, id) {
				return spec.Models[i].Name, r.Name, ids, nil
			}
		}
		for _, c := range attached[r.Name] {
			if c.ID != id {
				continue
			}
			if c.Model == "" {
				return "", "", nil, &ModelUnknownError{id}
			}
			for _, o := range attached[r.Name] {
				if o.Model == c.Model {
					ids = append(ids, o.ID)
				}
			}
			return c.Model, r.Name, ids, nil
		}
	}
	return "", "", nil, &NoReplicaError{id}
}

// IDsOf are the ids of a model's replicas in a region, in the order of their
// numbers; none where it is not local.
func (w Wanted) IDsOf(spec *service.Spec, model string, region service.Region) []string {
	if region.Cloud() != service.CloudLocal {
		return nil
	}
	var ids []string
	for _, r := range w.numbered(spec, model, region) {
		ids = append(ids, r.id)
	}
	return ids
}

// takeBack is w with up to n of a group's donated replicas taken back, those that
// were lent last first: what they hold is the freshest.
func (w Wanted) takeBack(ids []string, n int) Wanted {
	var lent []Donated
	for _, d := range w.Donated {
		if slices.Contains(ids, d.ID) {
			lent = append(lent, d)
		}
	}
	slices.SortStableFunc(lent, func(a, b Donated) int { return b.Since.Compare(a.Since) })
	for _, d := range lent[:min(max(n, 0), len(lent))] {
		w = w.Reclaimed(d.ID)
	}
	return w
}

// keptDonated are the donations that still hold: of replicas that exist, and no
// more of them than leave the least replicas serving. Without all, more may exist
// than is told.
func (w Wanted) keptDonated(spec *service.Spec, exists []string, all bool) []Donated {
	for _, r := range spec.Regions {
		for i := range spec.Models {
			if ids := w.IDsOf(spec, spec.Models[i].Name, r.Name); len(ids) > 0 {
				w = w.takeBack(ids, spec.BoundsFor(spec.Models[i].Name, r.Name).Min-len(w.Serving(ids)))
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(w.Donated), func(d Donated) bool { return all && !slices.Contains(exists, d.ID) })
}
