package plan

import (
	"fmt"
	"slices"

	"skyserve/internal/service"
)

// Extras are what a Problem may state beyond SageServe's programme; the zero
// value changes nothing. The GPUs of the problem are then offerings: a GPU that
// can be had as reserved, on demand and spot is three of them.
type Extras struct {
	// RegionAlpha is the price of a replica in region j on GPU k, in USD an hour,
	// where prices differ by region; nil = Alpha everywhere.
	RegionAlpha [][]float64 `json:"region_alpha,omitempty"`
	// CapacityType is how GPU k is had: reserved, on_demand, spot, or empty =
	// unknown. What is reserved is paid whether it is used or not, up to its
	// capacity, which must be stated: it costs nothing more to use.
	CapacityType []string `json:"capacity_type,omitempty"`
	// Switch is the cost of bringing model i up on a VM with GPU k that another
	// model of the same region gives up, in USD, instead of Sigma on a new one
	// (SageServe: some 10 minutes); nil, or a nil entry, is not possible.
	Switch [][]*float64 `json:"switch,omitempty"`
	// MinTotal and MaxTotal bound model i's replicas over all regions; nil is no
	// bound, as is a nil entry.
	MinTotal []*int `json:"min_total,omitempty"`
	MaxTotal []*int `json:"max_total,omitempty"`
	// RTTMillis is the round trip between regions; load is served only where that
	// is at most MaxRTTMillis from where it arises. Nil, or 0, is no limit.
	RTTMillis    [][]float64 `json:"rtt_ms,omitempty"`
	MaxRTTMillis float64     `json:"max_rtt_ms,omitempty"`
	// Egress is the price of a million prompt tokens that region j sends away
	// because its own capacity is less than its load, in USD; nil = 0.
	Egress []float64 `json:"egress,omitempty"`
	// Survive asks that every load is still carried with any one region gone.
	Survive bool `json:"survive,omitempty"`
	// SurviveRegions narrows Survive to the loss of any one of these regions; empty
	// = of any region.
	SurviveRegions []string `json:"survive_regions,omitempty"`
}

// extras checks what the problem states beyond the programme.
func (c *checker) extras(p *Problem) {
	if p.RegionAlpha != nil {
		c.length("region_alpha", len(p.RegionAlpha), c.regions)
		for j, row := range p.RegionAlpha {
			c.figures(at("region_alpha", j), row, c.gpus)
		}
	}
	if p.CapacityType != nil {
		c.length("capacity_type", len(p.CapacityType), c.gpus)
	}
	if c.err == nil {
		c.capacityTypes(p)
	}
	if p.Switch != nil {
		c.length("switch", len(p.Switch), c.models)
		for i, row := range p.Switch {
			c.length(at("switch", i), len(row), c.gpus)
			for k, v := range row {
				if v != nil && !(*v >= 0 && *v <= 1e15) {
					c.failf("%s: must be 0 or more, got %g", at("switch", i, k), *v)
				}
			}
		}
	}
	if p.MinTotal != nil {
		c.limits("min_total", [][]*int{p.MinTotal}, 1, c.models)
	}
	if p.MaxTotal != nil {
		c.limits("max_total", [][]*int{p.MaxTotal}, 1, c.models)
	}
	if p.Egress != nil {
		c.figures("egress", p.Egress, c.regions)
	}
	for at, name := range p.SurviveRegions {
		if !slices.Contains(p.Regions, name) {
			c.failf("survive_regions[%d]: want one of the regions, got %q", at, name)
		}
	}
	c.reach(p)
}

// mayGo reports whether the loss of region j is to be survived.
func (p *Problem) mayGo(j int) bool {
	return p.Survive && (len(p.SurviveRegions) == 0 || slices.Contains(p.SurviveRegions, p.Regions[j]))
}

// capacityTypes checks that they are known, and that what is reserved has a
// count in every region.
func (c *checker) capacityTypes(p *Problem) {
	for k, t := range p.CapacityType {
		switch service.CapacityType(t) {
		case "", service.CapacityOnDemand, service.CapacitySpot:
		case service.CapacityReserved:
			for j := range p.Regions {
				if p.Capacity == nil || j < len(p.Capacity) && k < len(p.Capacity[j]) && p.Capacity[j][k] == nil {
					c.failf("%s: reserved, so %s must be a count, got null", at("capacity_type", k), at("capacity", j, k))
				}
			}
		default:
			c.failf("%s: want reserved, on_demand or spot, got %q", at("capacity_type", k), t)
		}
	}
}

// reach checks the round trips and that no row over them is beyond reason.
func (c *checker) reach(p *Problem) {
	if !(p.MaxRTTMillis >= 0 && p.MaxRTTMillis <= 1e15) {
		c.failf("max_rtt_ms: must be 0 or more, got %g", p.MaxRTTMillis)
	}
	if p.RTTMillis == nil {
		if p.MaxRTTMillis > 0 {
			c.failf("max_rtt_ms: must come with rtt_ms")
		}
		return
	}
	c.length("rtt_ms", len(p.RTTMillis), c.regions)
	for j, row := range p.RTTMillis {
		c.figures(at("rtt_ms", j), row, c.regions)
	}
	if c.err == nil && p.reachSets() == nil {
		c.failf("max_rtt_ms: %g leaves more than %d different sets of regions that reach each other: round it", p.MaxRTTMillis, maxReachSets)
	}
}

// Price is what one more replica on GPU k in region j is billed an hour, in
// USD: 0 for what is reserved, for that is paid anyway.
func (p *Problem) Price(j, k int) float64 {
	switch {
	case p.Reserved(k):
		return 0
	case p.RegionAlpha != nil:
		return p.RegionAlpha[j][k]
	}
	return p.Alpha[k]
}

// Reserved reports whether GPU k is paid whether it is used or not.
func (p *Problem) Reserved(k int) bool {
	return p.CapacityType != nil && service.CapacityType(p.CapacityType[k]) == service.CapacityReserved
}

// away is how load of model i in region j that is sent away is priced.
func (p *Problem) away(i, j int) away {
	if p.Egress == nil || p.Egress[j] == 0 {
		return away{}
	}
	return away{price: p.Egress[j] * egressHour, loads: p.Rho[i][j]}
}

// total is a bound over all regions, or otherwise where there is none.
func total(row []*int, i, otherwise int) int {
	if row == nil || row[i] == nil {
		return otherwise
	}
	return *row[i]
}

// standing is how many replicas of any model stand in region j on GPU k.
func (p *Problem) standing(j, k int) int {
	sum := 0
	for i := range p.Models {
		sum += p.N[i][j][k]
	}
	return sum
}

// canSwitch reports whether model i can take over VMs with GPU k, and cheaper
// than it starts new ones.
func (p *Problem) canSwitch(i, k int) bool {
	return p.Switch != nil && p.Switch[i][k] != nil && *p.Switch[i][k] < p.Sigma[i][k]
}

// spared is how much less the counts of a region on one GPU cost than with
// every replica beyond n started on a new VM: the VMs that stand go where they
// spare most, to a model's own replicas (its sigma) or to another's (sigma less
// switch). When share is not nil it is set to how many VMs each model takes
// over. That greedy choice is exact, for every choice takes one VM.
func (p *Problem) spared(j, k int, count func(i int) int, share []int) float64 {
	type use struct {
		model, vms int
		each       float64 // over what Cost counts: keeping is free there already
		own        bool
	}
	uses := make([]use, 0, 2*len(p.Models))
	left, sum := p.standing(j, k), 0.0
	for i := range p.Models {
		n, x := p.N[i][j][k], count(i)
		sum -= p.Sigma[i][k] * float64(min(n, x))
		uses = append(uses, use{i, min(n, x), p.Sigma[i][k], true})
		if p.canSwitch(i, k) && x > n {
			uses = append(uses, use{i, x - n, p.Sigma[i][k] - *p.Switch[i][k], false})
		}
	}
	slices.SortStableFunc(uses, func(a, b use) int {
		switch {
		case a.each > b.each:
			return -1
		case a.each < b.each:
			return 1
		}
		return 0
	})
	for _, u := range uses {
		vms := min(left, u.vms)
		left -= vms
		sum += u.each * float64(vms)
		if share != nil && !u.own {
			share[u.model] = vms
		}
	}
	return sum
}

// verifyTotal checks the bounds over all regions.
func (p *Problem) verifyTotal(i, count int) error {
	least, most := total(p.MinTotal, i, 0), total(p.MaxTotal, i, unlimited)
	if count < least || count > most {
		return fmt.Errorf("%s over all regions: %d replicas, want %d to %d", p.Models[i], count, least, most)
	}
	return nil
}
