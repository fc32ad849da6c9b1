package plan

import (
	"fmt"
	"slices"

	"skyserve/internal/service"
)

// Extras are optional fields of a Problem beyond SageServe's program; the zero value changes
// nothing. With CapacityType, the GPUs of the problem are offerings: a GPU available as reserved, on
// demand and spot is three of them.
type Extras struct {
	// RegionPricePerHour is the price of a replica in region j on GPU k, in USD per hour, where prices
	// differ by region; nil = PricePerHour everywhere.
	RegionPricePerHour [][]float64 `json:"region_alpha,omitempty"`
	// CapacityType is the capacity type of GPU k: reserved, on_demand, spot, flex_start, or empty = unknown.
	// Reserved capacity is paid whether used or not, so using it costs nothing more; its Capacity
	// is required.
	CapacityType []string `json:"capacity_type,omitempty"`
	// SwitchCostUSD is the cost in USD of starting model i on a VM with GPU k that another model in the
	// same region frees (in SageServe, this takes 10 minutes); StartCostUSD is the cost on a new VM. Nil, or
	// a nil entry, means that it is not possible.
	SwitchCostUSD [][]*float64 `json:"switch,omitempty"`
	// MinTotal and MaxTotal bound the replicas of model i over all regions; nil, or a nil entry, is
	// no bound.
	MinTotal []*int `json:"min_total,omitempty"`
	MaxTotal []*int `json:"max_total,omitempty"`
	// RTTMillis is the round trip between regions. A region serves load only from regions at most
	// MaxRTTMillis away. There is no limit when RTTMillis is nil or MaxRTTMillis is 0.
	RTTMillis    [][]float64 `json:"rtt_ms,omitempty"`
	MaxRTTMillis float64     `json:"max_rtt_ms,omitempty"`
	// Egress is the price in USD of a million prompt tokens that region j sends to other regions
	// because its own capacity is below its load; nil = 0.
	Egress []float64 `json:"egress,omitempty"`
	// Survive requires that all load is still served after the loss of any one region.
	Survive bool `json:"survive,omitempty"`
	// SurviveRegions limits Survive to the loss of any one of these regions; empty = of any region.
	SurviveRegions []string `json:"survive_regions,omitempty"`
}

// checkExtras checks the fields of Extras.
func (c *inputChecker) checkExtras(p *Problem) {
	if p.RegionPricePerHour != nil {
		c.checkLength("region_alpha", len(p.RegionPricePerHour), c.regions)
		for j, row := range p.RegionPricePerHour {
			c.checkValues(indexed("region_alpha", j), row, c.gpus)
		}
	}
	if p.CapacityType != nil {
		c.checkLength("capacity_type", len(p.CapacityType), c.gpus)
	}
	if c.err == nil {
		c.checkCapacityTypes(p)
	}
	if p.SwitchCostUSD != nil {
		c.checkLength("switch", len(p.SwitchCostUSD), c.models)
		for i, row := range p.SwitchCostUSD {
			c.checkLength(indexed("switch", i), len(row), c.gpus)
			for k, v := range row {
				if v != nil && !(*v >= 0 && *v <= 1e15) {
					c.failf("%s: must be 0 to 1e15, got %g", indexed("switch", i, k), *v)
				}
			}
		}
	}
	if p.MinTotal != nil {
		c.checkLimitRow("min_total", p.MinTotal, c.models)
	}
	if p.MaxTotal != nil {
		c.checkLimitRow("max_total", p.MaxTotal, c.models)
	}
	if p.Egress != nil {
		c.checkValues("egress", p.Egress, c.regions)
	}
	for at, name := range p.SurviveRegions {
		if !slices.Contains(p.Regions, name) {
			c.failf("survive_regions[%d]: must be one of the regions, got %q", at, name)
		}
	}
	c.checkReach(p)
}

// mustSurviveLossOf reports whether the plan must survive the loss of region j.
func (p *Problem) mustSurviveLossOf(j int) bool {
	return p.Survive && (len(p.SurviveRegions) == 0 || slices.Contains(p.SurviveRegions, p.Regions[j]))
}

// checkCapacityTypes checks that capacity types are known, and that a reserved one has a capacity in
// every region.
func (c *inputChecker) checkCapacityTypes(p *Problem) {
	for k, t := range p.CapacityType {
		switch service.CapacityType(t) {
		case "", service.CapacityOnDemand, service.CapacitySpot, service.CapacityFlexStart:
		case service.CapacityReserved:
			for j := range p.Regions {
				if p.Capacity == nil || j < len(p.Capacity) && k < len(p.Capacity[j]) && p.Capacity[j][k] == nil {
					c.failf("%s: capacity is reserved, so %s must be a count, got null", indexed("capacity_type", k), indexed("capacity", j, k))
				}
			}
		default:
			c.failf("%s: must be reserved, on_demand, spot or flex_start, got %q", indexed("capacity_type", k), t)
		}
	}
}

// checkReach checks the round trips and limits the number of rows that result from them.
func (c *inputChecker) checkReach(p *Problem) {
	if !(p.MaxRTTMillis >= 0 && p.MaxRTTMillis <= 1e15) {
		c.failf("max_rtt_ms: must be 0 to 1e15, got %g", p.MaxRTTMillis)
	}
	if p.RTTMillis == nil {
		if p.MaxRTTMillis > 0 {
			c.failf("max_rtt_ms: requires rtt_ms")
		}
		return
	}
	c.checkLength("rtt_ms", len(p.RTTMillis), c.regions)
	for j, row := range p.RTTMillis {
		c.checkValues(indexed("rtt_ms", j), row, c.regions)
	}
	if c.err == nil && p.reachSets() == nil {
		c.failf("max_rtt_ms: %g leads to more than %d different sets of regions in reach of each other; set a higher or lower limit", p.MaxRTTMillis, maxReachSets)
	}
}

// Price returns the hourly price of one more replica on GPU k in region j, in USD: 0 for reserved
// capacity, which is paid anyway.
func (p *Problem) Price(j, k int) float64 {
	switch {
	case p.Reserved(k):
		return 0
	case p.RegionPricePerHour != nil:
		return p.RegionPricePerHour[j][k]
	}
	return p.PricePerHour[k]
}

// Reserved reports whether GPU k is reserved, so paid whether used or not.
func (p *Problem) Reserved(k int) bool {
	return p.CapacityType != nil && service.CapacityType(p.CapacityType[k]) == service.CapacityReserved
}

// egressCostOf returns the egress cost of model i's load in region j.
func (p *Problem) egressCostOf(i, j int) egressCost {
	if p.Egress == nil || p.Egress[j] == 0 {
		return egressCost{}
	}
	return egressCost{price: p.Egress[j] * millionTokensPerHour, loads: p.LoadTPS[i][j]}
}

// totalOr returns a bound over all regions, or fallback where there is none.
func totalOr(row []*int, i, fallback int) int {
	if row == nil || row[i] == nil {
		return fallback
	}
	return *row[i]
}

// runningVMs returns the number of running replicas of all models in region j on GPU k.
func (p *Problem) runningVMs(j, k int) int {
	sum := 0
	for i := range p.Models {
		sum += p.Current[i][j][k]
	}
	return sum
}

// canTakeOverVMs reports whether model i can take over VMs with GPU k from other models, at a lower
// cost than starting new ones.
func (p *Problem) canTakeOverVMs(i, k int) bool {
	return p.SwitchCostUSD != nil && p.SwitchCostUSD[i][k] != nil && *p.SwitchCostUSD[i][k] < p.StartCostUSD[i][k]
}

// reuseSavings returns the saving of a region's counts on one GPU against starting every replica beyond the current
// ones on a new VM. Running VMs go where they save most: to a model's own replicas (saving the start cost) or to
// another model's (saving the start cost minus the switch cost). A non-nil share is set to the number of VMs that each
// model takes over. This greedy assignment is exact because every choice uses one VM.
func (p *Problem) reuseSavings(j, k int, count func(i int) int, share []int) float64 {
	type use struct {
		model, vms int
		each       float64 // saving of one VM against starting on a new one
		own        bool
	}
	uses := make([]use, 0, 2*len(p.Models))
	remaining, sum := p.runningVMs(j, k), 0.0
	for i := range p.Models {
		n, x := p.Current[i][j][k], count(i)
		sum -= p.StartCostUSD[i][k] * float64(min(n, x)) // the baseline has no start cost for kept replicas
		uses = append(uses, use{i, min(n, x), p.StartCostUSD[i][k], true})
		if p.canTakeOverVMs(i, k) && x > n {
			uses = append(uses, use{i, x - n, p.StartCostUSD[i][k] - *p.SwitchCostUSD[i][k], false})
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
		vms := min(remaining, u.vms)
		remaining -= vms
		sum += u.each * float64(vms)
		if share != nil && !u.own {
			share[u.model] = vms
		}
	}
	return sum
}

// verifyTotal checks model i's count over all regions against its bounds.
func (p *Problem) verifyTotal(i, count int) error {
	minimum, maximum := totalOr(p.MinTotal, i, 0), totalOr(p.MaxTotal, i, unlimited)
	if count < minimum || count > maximum {
		return fmt.Errorf("%s over all regions: replicas must be %d to %d, got %d", p.Models[i], minimum, maximum, count)
	}
	return nil
}
