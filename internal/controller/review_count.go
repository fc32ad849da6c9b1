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
				out[i][j] = make([]int, len(r.offers))
			}
		}
		return out
	}
	r.p.N, r.donated = grid(), grid()
	var total, donated int
	for _, c := range counts {
		i, j := r.modelIndex(c.Model), r.regionIndex(c.Region)
		var columns []int
		if i >= 0 && j >= 0 {
			columns = r.columnsOf(i, j, c.GPU)
		}
		if len(columns) == 0 {
			r.assume("%d replicas of %s in %s are of no model or region of the service: left out", c.Replicas+c.Donated, c.Model, c.Region)
			continue
		}
		r.stand(i, j, columns, c.Replicas)
		r.donated[i][j][columns[len(columns)-1]] += c.Donated
		total, donated = total+c.Replicas, donated+c.Donated
	}
	if price := r.spec.Autoscale.DonatePrice; donated > 0 && price > 0 {
		r.assume("%d donated replicas earn $%.2f an hour, which the cost leaves out", donated, price*float64(donated))
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

// stand fills replicas into columns, each up to what its region holds of it, the
// rest into the last: that is the order in which they were had.
func (r *review) stand(i, j int, columns []int, replicas int) {
	for at, k := range columns {
		n := replicas
		if room := r.p.Capacity[j][k]; room != nil && at+1 < len(columns) {
			left := *room
			for m := range r.p.Models {
				left -= r.p.N[m][j][k]
			}
			n = min(n, max(0, left))
		}
		r.p.N[i][j][k] += n
		replicas -= n
	}
}

// columnsOf finds the columns that a replica of model i in region j stands on by
// its GPU's type, in the order in which they are had; none where the region has
// nothing for the model. A replica of another or unknown type counts as the first
// that the model lists.
func (r *review) columnsOf(i, j int, gpu string) []int {
	var first, same []int
	for k, o := range r.offers {
		if r.p.Theta[i][k] == 0 || r.p.Capacity[j][k] != nil && *r.p.Capacity[j][k] == 0 {
			continue
		}
		if len(first) == 0 || r.offers[first[0]].gpuClass == o.gpuClass {
			first = append(first, k)
		}
		if o.gpu == gpu && (len(same) == 0 || r.offers[same[0]].gpuClass == o.gpuClass) {
			same = append(same, k)
		}
	}
	if len(same) == 0 && len(first) > 0 {
		same = first
		r.assume("replicas of %s in %s run on %s: counted as %s", r.p.Models[i], r.p.Regions[j], cmp.Or(gpu, "an unknown GPU"), r.offers[first[0]].gpuClass)
	}
	return r.without(j, same)
}

// without leaves on demand out where a region takes spot first: what stands there
// beyond its base was had as spot.
func (r *review) without(j int, columns []int) []int {
	if !spotFirst(&r.spec.Regions[j]) {
		return columns
	}
	return slices.DeleteFunc(columns, func(k int) bool { return r.offers[k].kind == service.CapacityOnDemand && !r.offers[k].base })
}
