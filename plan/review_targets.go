package plan

import (
	"skyserve/internal/service"
)

// maxTargetSteps is the maximum number of steps in a target's forecast.
const maxTargetSteps = 12

// EndpointTarget is a plan's target for one model in one region.
type EndpointTarget struct {
	Model  string
	Region service.Region
	// HourlyTarget applies from the time of the plan on. The caller sets From and Until.
	HourlyTarget
}

// ReplicaTarget is a plan's target number of replicas on one GPU and capacity type.
type ReplicaTarget struct {
	GPU          service.GPU          // type and count; zero where the model sets none
	CapacityType service.CapacityType // empty where nothing is rented
	Count        int
}

// Targets returns the plan's targets for each model and region, in the order of service.yaml. When
// no plan is feasible, they serve each region's own peak as far as the bounds allow. There are no
// targets when solving ended without counts (StatusUnknown).
func (v *ReviewResult) Targets() []EndpointTarget {
	x := v.Counts
	if x == nil && v.Proposal.Status == StatusInfeasible {
		x = v.Problem.countsWithinBounds()
	}
	if x == nil {
		return nil
	}
	var out []EndpointTarget
	for i, m := range v.Problem.Models {
		for j, region := range v.Problem.Regions {
			t := EndpointTarget{Model: m, Region: service.Region(region)}
			t.ReplicaTPS = firstThroughput(v.Problem.ReplicaTPS[i])
			for k, n := range x[i][j] {
				if n > 0 {
					o := v.review.offerings[k]
					t.Count += n
					t.Replicas = mergeReplicaTarget(t.Replicas, v.review.replicaTarget(i, o, n))
				}
			}
			if t.Count > 0 {
				t.ReplicaTPS = v.Problem.Throughput(i, x[i][j]) / float64(t.Count)
			}
			t.PeakTPS = v.Problem.RegionPeak(i, j)
			t.Tracking = v.review.trackings[i][j]
			if l := v.forecastFor(m, t.Region); l != nil {
				t.ForecastStep, t.ForecastTPS = l.TargetStep(), l.MeanRates(l.Forecast.Mean)
			}
			out = append(out, t)
		}
	}
	return out
}

// replicaTarget returns the target of n replicas of a model on an offering. The GPU is omitted where the
// model sets none, because it is only assumed, and the capacity type is omitted on the operator's
// own machines.
func (r *review) replicaTarget(model int, o offering, n int) ReplicaTarget {
	t := ReplicaTarget{Count: n}
	if len(r.spec.Models[model].GPUs) > 0 {
		t.GPU = service.GPU{Type: o.gpu, Count: o.count}
	}
	if !ownMachines(o.cloud) {
		t.CapacityType = o.capacityType
	}
	return t
}

// mergeReplicaTarget merges targets of the same GPU and capacity type: the on-demand base and on demand
// beyond it are one.
func mergeReplicaTarget(all []ReplicaTarget, t ReplicaTarget) []ReplicaTarget {
	for i := range all {
		if all[i].GPU == t.GPU && all[i].CapacityType == t.CapacityType {
			all[i].Count += t.Count
			return all
		}
	}
	return append(all, t)
}

// forecastFor returns the forecast of a model in a region; nil where there is none.
func (v *ReviewResult) forecastFor(model string, region service.Region) *EndpointForecast {
	for i := range v.Forecasts {
		if v.Forecasts[i].Model == model && v.Forecasts[i].Region == region {
			return &v.Forecasts[i]
		}
	}
	return nil
}

// firstThroughput returns the throughput of a replica on the first GPU of the problem that the model runs on.
func firstThroughput(tps []float64) float64 {
	for _, v := range tps {
		if v > 0 {
			return v
		}
	}
	return 0
}

// countsWithinBounds returns counts that serve each region's own peak as far as min, max and capacity
// allow, on the cheapest GPUs.
func (p *Problem) countsWithinBounds() [][][]int {
	x := zeroCounts(p)
	for i := range x {
		for j := range x[i] {
			(&LoadTrace{Problem: p}).addReplicas(x, i, j, p.RegionPeak(i, j), limitOr(p.Max, i, j, unlimited))
		}
	}
	return x
}
