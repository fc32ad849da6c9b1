package plan

import (
	"skyserve/internal/service"
)

// targetSteps is how many steps a forecast is told in: strategies and people need no
// minutes, and every balancer hands it to everyone who asks.
const targetSteps = 12

// EndpointTarget is what a plan wants of one model in one region.
type EndpointTarget struct {
	Model  string
	Region service.Region
	// Target holds from the time of the plan on; whoever paces it sets From and Until.
	Target
}

// ReplicaTarget is how many replicas a plan wants on one kind of GPU, paid for in one way.
type ReplicaTarget struct {
	GPU      service.GPU          // its type and count; zero where the model states none
	Capacity service.CapacityType // empty where nothing is rented
	Count    int
}

// Targets is what the plan wants of each model and region, in the order of service.yaml.
// Where no plan keeps to the bounds, load is planned for as far as they allow, each
// region's peak for itself. There are none where solving was cut short.
func (v *Reviewed) Targets() []EndpointTarget {
	x := v.X
	if x == nil && v.Proposal.Status == StatusInfeasible {
		x = v.Problem.withinBounds()
	}
	if x == nil {
		return nil
	}
	var out []EndpointTarget
	for i, m := range v.Problem.Models {
		for j, region := range v.Problem.Regions {
			t := EndpointTarget{Model: m, Region: service.Region(region)}
			t.ReplicaTPS = firstKnown(v.Problem.Theta[i])
			for k, n := range x[i][j] {
				if n > 0 {
					o := v.made.offers[k]
					t.Count += n
					t.Replicas = addReplicas(t.Replicas, v.made.replicas(i, o, n))
				}
			}
			if t.Count > 0 {
				t.ReplicaTPS = v.Problem.Carried(i, x[i][j]) / float64(t.Count)
			}
			t.PeakTPS = v.Problem.Peak(i, j)
			if l := v.load(m, t.Region); l != nil {
				t.CourseStep, t.Course = l.Step(), l.PerStep(l.Forecast.Mean)
			}
			out = append(out, t)
		}
	}
	return out
}

// replicas are n of a model on an offer. What a model runs on that states no GPU is assumed, and
// asked of nobody, and so is how machines are paid for that are one's own.
func (r *review) replicas(model int, o offer, n int) ReplicaTarget {
	t := ReplicaTarget{Count: n}
	if len(r.spec.Models[model].GPUs) > 0 {
		t.GPU = service.GPU{Type: o.gpu, Count: o.count}
	}
	if !ownMachines(o.cloud) {
		t.Capacity = o.kind
	}
	return t
}

// addReplicas adds to those of the same GPU and capacity type: the base on demand and what
// is on demand beyond it are one.
func addReplicas(all []ReplicaTarget, t ReplicaTarget) []ReplicaTarget {
	for i := range all {
		if all[i].GPU == t.GPU && all[i].Capacity == t.Capacity {
			all[i].Count += t.Count
			return all
		}
	}
	return append(all, t)
}

// load is the forecast of a model in a region; nil where there is none.
func (v *Reviewed) load(model string, region service.Region) *Load {
	for i := range v.Loads {
		if v.Loads[i].Model == model && v.Loads[i].Region == region {
			return &v.Loads[i]
		}
	}
	return nil
}

// firstKnown is what a replica carries on the first GPU that the model runs on.
func firstKnown(theta []float64) float64 {
	for _, v := range theta {
		if v > 0 {
			return v
		}
	}
	return 0
}

// withinBounds is counts that carry each region's own peak as far as min, max and capacity
// allow, on what carries it cheapest.
func (p *Problem) withinBounds() [][][]int {
	x := zeros(p)
	for i := range x {
		for j := range x[i] {
			(&Past{Problem: p}).grow(x, i, j, p.Peak(i, j), limit(p.Max, i, j, unlimited))
		}
	}
	return x
}
