package plan

import (
	"math"
	"math/rand/v2"
)

// kinds are the extensions of SageServe's program that a problem may have.
var kinds = []struct {
	name string
	make func(p *Problem, r *rand.Rand) *Problem
}{
	{"plain", func(p *Problem, _ *rand.Rand) *Problem { return p }},
	{"capacity", func(p *Problem, r *rand.Rand) *Problem { return withCapacity(p, r, 1+r.Float64()) }},
	{"types", withTypes},
	{"switch", withSwitch},
	{"totals", withTotals},
	{"rtt", withRTT},
	{"egress", withEgress},
	{"survive", func(p *Problem, _ *rand.Rand) *Problem { p.Survive = true; return p }},
	{"everything", func(p *Problem, r *rand.Rand) *Problem {
		p.Survive = r.IntN(2) == 0
		return withEgress(withRTT(withTotals(withSwitch(withCapacity(p, r, 1.5+r.Float64()), r), r), r), r)
	}},
}

// withTypes makes the first GPU reserved: expensive, paid anyway, few.
func withTypes(p *Problem, r *rand.Rand) *Problem {
	withCapacity(p, r, 2.5)
	p.CapacityType = make([]string, len(p.GPUs))
	p.CapacityType[0] = "reserved"
	for j := range p.Regions {
		p.Capacity[j][0] = ptr(r.IntN(6))
		p.RegionPricePerHour = append(p.RegionPricePerHour, nil)
		for k := range p.GPUs {
			p.RegionPricePerHour[j] = append(p.RegionPricePerHour[j], math.Round(100*p.PricePerHour[k]*(0.8+0.5*r.Float64()))/100)
			if k > 0 && r.IntN(3) == 0 {
				p.Capacity[j][k] = nil
			}
		}
	}
	return p
}

func withSwitch(p *Problem, r *rand.Rand) *Problem {
	for i := range p.Models {
		p.SwitchCostUSD = append(p.SwitchCostUSD, nil)
		for k := range p.GPUs {
			p.StartCostUSD[i][k] *= 3
			cost := math.Round(100*p.StartCostUSD[i][k]*r.Float64()*0.6) / 100
			p.SwitchCostUSD[i] = append(p.SwitchCostUSD[i], &cost)
			if r.IntN(5) == 0 {
				p.SwitchCostUSD[i][k] = nil
			}
		}
	}
	return p
}

// withTotals bounds some models' replicas over all regions.
func withTotals(p *Problem, r *rand.Rand) *Problem {
	p.MinTotal, p.MaxTotal = make([]*int, len(p.Models)), make([]*int, len(p.Models))
	for i := range p.Models {
		units := 0
		for k := range p.GPUs {
			units = max(units, unitsFor(p.GlobalDemand(i), p.ReplicaTPS[i][k]))
		}
		if r.IntN(2) == 0 {
			p.MinTotal[i] = ptr(units * 3 / 4)
		}
		if r.IntN(2) == 0 {
			p.MaxTotal[i] = ptr(units + len(p.Regions))
		}
	}
	return p
}

// withRTT puts the regions on a line and limits the round trip of load.
func withRTT(p *Problem, r *rand.Rand) *Problem {
	p.MaxRTTMillis = 80
	where := make([]float64, len(p.Regions))
	for j := range where {
		where[j] = 100 * r.Float64()
	}
	for j := range where {
		p.RTTMillis = append(p.RTTMillis, nil)
		for k := range where {
			p.RTTMillis[j] = append(p.RTTMillis[j], math.Round(2*math.Abs(where[j]-where[k])))
		}
	}
	return p
}

func withEgress(p *Problem, r *rand.Rand) *Problem {
	for range p.Regions {
		p.Egress = append(p.Egress, math.Round(100*r.Float64())/100)
	}
	return p
}
