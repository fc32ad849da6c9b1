package plan

import (
	"cmp"
	"slices"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// ReplicaCount is the number of replicas of a model that run in a region on a GPU.
type ReplicaCount struct {
	Model  string
	Region service.Region
	GPU    string
	// CapacityType is the capacity type of their machines; empty = unknown.
	CapacityType service.CapacityType
	// Replicas are ready or starting; Donated run other work until they are reclaimed.
	Replicas, Donated int
}

// CurrentProposal returns a proposal of the running replicas without changes.
func (in *ReviewInputs) CurrentProposal(counts []ReplicaCount, status SolveStatus) Proposal {
	r := in.review
	r.setCounts(counts)
	return Propose(&r.problem, Solution{Counts: r.problem.Current, Status: status}, ProposalContext{At: r.at, GPUNames: r.gpus, Donated: r.donated, Billed: r.billed})
}

// setCounts sets problem.Current and the donated replicas.
func (r *review) setCounts(counts []ReplicaCount) {
	grid := func() [][][]int {
		out := make([][][]int, len(r.problem.Models))
		for i := range out {
			out[i] = make([][]int, len(r.problem.Regions))
			for j := range out[i] {
				out[i][j] = make([]int, len(r.offerings))
			}
		}
		return out
	}
	r.problem.Current, r.donated = grid(), grid()
	var total, donated int
	for _, c := range counts {
		i, j := r.modelIndex(c.Model), r.regionIndex(c.Region)
		var indexes []int
		if i >= 0 && j >= 0 {
			indexes = r.offeringsOf(i, j, c.GPU, c.CapacityType)
		}
		if len(indexes) == 0 {
			r.assume("the service has no %s in %s: %s ignored", c.Model, c.Region, printable.Count(c.Replicas+c.Donated, "replica"))
			continue
		}
		r.placeReplicas(i, j, indexes, c.Replicas)
		r.donated[i][j][indexes[len(indexes)-1]] += c.Donated
		total, donated = total+c.Replicas, donated+c.Donated
	}
	if price := r.spec.Autoscale.DonatePrice; donated > 0 && price > 0 {
		r.assume("the cost does not include the revenue of %s, $%.2f per hour", printable.Count(donated, "donated replica"), price*float64(donated))
	}
	if total == 0 {
		r.assume("no replica is running: all are counted as new")
	}
}

// modelIndex returns the index of a model by name or alias, -1 for none.
func (r *review) modelIndex(name string) int {
	m := r.spec.ModelByName(name)
	if m == nil {
		return -1
	}
	return slices.Index(r.problem.Models, m.Name)
}

func (r *review) regionIndex(region service.Region) int {
	return slices.Index(r.problem.Regions, string(region))
}

// placeReplicas adds replicas to the offerings with these indexes, in launch order: to each up to the region's capacity,
// the remainder to the last.
func (r *review) placeReplicas(i, j int, indexes []int, replicas int) {
	for at, k := range indexes {
		n := replicas
		if limit := r.problem.Capacity[j][k]; limit != nil && at+1 < len(indexes) {
			remaining := *limit
			for m := range r.problem.Models {
				remaining -= r.problem.Current[m][j][k]
			}
			n = min(n, max(0, remaining))
		}
		r.problem.Current[i][j][k] += n
		replicas -= n
	}
}

// offeringsOf returns the indexes of the offerings that a replica of model i in region j may run on, by its GPU type, in
// launch order; none where the region has no offering for the model. A replica of another or unknown type counts as the
// model's first GPU class that is offered there. Where the class is offered with the replica's capacity type,
// only these offerings are returned.
func (r *review) offeringsOf(i, j int, gpu string, capacityType service.CapacityType) []int {
	same := r.offeringsOfClass(i, j, func(c gpuClass) bool { return c.gpu == gpu })
	if len(same) == 0 {
		if same = r.offeringsOfClass(i, j, func(gpuClass) bool { return true }); len(same) == 0 {
			return nil
		}
		r.assume("replicas of %s in %s run on %s: counted as %s", r.problem.Models[i], r.problem.Regions[j], cmp.Or(gpu, "an unknown GPU"), r.offerings[same[0]].gpuClass)
	}
	sameType := slices.DeleteFunc(slices.Clone(same), func(k int) bool { return r.offerings[k].capacityType != capacityType })
	if len(sameType) > 0 {
		return sameType
	}
	return r.dropUnusedOnDemand(j, same)
}

// offeringsOfClass returns the indexes of the offerings of the model's first GPU class, in the order of service.yaml, that
// matches and that region j offers; nil for none.
func (r *review) offeringsOfClass(i, j int, matches func(gpuClass) bool) []int {
	for _, g := range r.gpusOf(&r.spec.Models[i]) {
		var indexes []int
		for k, o := range r.offerings {
			limit := limitOr(r.problem.Capacity, j, k, unlimited)
			if limit > 0 && o.gpu == g.Type && o.count == max(1, g.Count) && matches(o.gpuClass) {
				indexes = append(indexes, k)
			}
		}
		if indexes != nil {
			return indexes
		}
	}
	return nil
}

// dropUnusedOnDemand removes the on-demand offerings, except the on-demand base, if launches in the region try spot or
// flex-start first: only replicas up to regions[].on_demand_base are then launched on demand.
func (r *review) dropUnusedOnDemand(j int, indexes []int) []int {
	if !interruptibleFirst(&r.spec.Regions[j]) {
		return indexes
	}
	return slices.DeleteFunc(indexes, func(k int) bool {
		return r.offerings[k].capacityType == service.CapacityOnDemand && !r.offerings[k].onDemandBase
	})
}
