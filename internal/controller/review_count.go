package controller

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Count is how many replicas of a model stand in a region on a GPU.
type Count struct {
	Model  string
	Region service.Region
	GPU    string
	// Replicas serve or will soon; Donated are lent and serve somebody else.
	Replicas, Donated int
}

// CountReplicas counts a snapshot's replicas, sorted by model, region and GPU.
// Those that are leaving (draining, shutting down, interrupted, failed) do not
// count.
func CountReplicas(s *telemetry.Snapshot) []Count {
	index := map[Count]int{}
	out := []Count{}
	for _, region := range s.Regions {
		for _, r := range region.Replicas {
			key := Count{Model: r.Model, Region: region.Name, GPU: r.GPU}
			if _, ok := index[key]; !ok {
				index[key] = len(out)
				out = append(out, key)
			}
			c := &out[index[key]]
			switch {
			case r.Donated || r.State == service.StateDonated:
				c.Donated++
			case stays(r.State):
				c.Replicas++
			}
		}
	}
	out = slices.DeleteFunc(out, func(c Count) bool { return c.Replicas == 0 && c.Donated == 0 })
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region), cmp.Compare(a.GPU, b.GPU))
	})
	return out
}

// stays reports whether a replica in this state serves or is on its way to.
func stays(s service.ReplicaState) bool {
	switch s {
	case service.StatePending, service.StateProvisioning, service.StateStarting, service.StateReady, service.StateNotReady:
		return true
	}
	return false
}

// counts fills in n and what is donated.
func (r *review) counts(counts []Count) {
	grid := func() [][][]int {
		out := make([][][]int, len(r.p.Models))
		for i := range out {
			out[i] = make([][]int, len(r.p.Regions))
			for j := range out[i] {
				out[i][j] = make([]int, len(r.classes))
			}
		}
		return out
	}
	r.p.N, r.donated = grid(), grid()
	var total int
	for _, c := range counts {
		i, j, k := r.modelIndex(c.Model), r.regionIndex(c.Region), -1
		if i >= 0 && j >= 0 {
			k = r.classIndex(i, j, c.GPU)
		}
		if k < 0 {
			r.assume("%d replicas of %s in %s are of no model or region of the service: left out", c.Replicas+c.Donated, c.Model, c.Region)
			continue
		}
		r.p.N[i][j][k] += c.Replicas
		r.donated[i][j][k] += c.Donated
		total += c.Replicas
	}
	if total == 0 {
		r.assume("no replica stands now: every one is counted as new")
	}
}

// modelIndex finds a model by name or alias, -1 for none.
func (r *review) modelIndex(name string) int {
	m := r.spec.ModelByName(name)
	if m == nil {
		return -1
	}
	return slices.Index(r.p.Models, m.Name)
}

func (r *review) regionIndex(region service.Region) int {
	return slices.Index(r.p.Regions, string(region))
}

// classIndex finds the class that a replica of model i in region j runs on by
// its GPU's type. A replica of another or unknown type counts as the first that
// the model lists.
func (r *review) classIndex(i, j int, gpu string) int {
	first := -1
	for k, c := range r.classes {
		if c.cloud != service.Region(r.p.Regions[j]).Cloud() || r.p.Theta[i][k] == 0 {
			continue
		}
		if c.gpu == gpu {
			return k
		}
		if first < 0 {
			first = k
		}
	}
	if first >= 0 {
		r.assume("replicas of %s in %s run on %s: counted as %s", r.p.Models[i], r.p.Regions[j], cmp.Or(gpu, "an unknown GPU"), r.classes[first])
	}
	return first
}
