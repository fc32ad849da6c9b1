package cloud

import (
	"fmt"
	"math"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// BudgetProblem returns why autoscale.budget is below MinimumCost, without naming the key; empty if it is not, or if there
// is no budget.
func BudgetProblem(spec *service.Spec) string {
	budget := spec.BudgetPerHour()
	minimum := MinimumCost(spec)
	cents := math.Ceil(100*minimum-1e-6) / 100 // without the rounding errors of the sum
	if budget == 0 || budget >= min(minimum, cents) {
		return ""
	}
	return fmt.Sprintf("must be at least $%.2f, the price of the balancers and of replicas.min", cents)
}

// MinimumCost returns a lower bound of the cost of a service's machines, in USD per hour: the balancers, and
// replicas.min in regions whose only capacity type is on demand, at the prices of service.yaml or else the list
// prices. Other replicas, and machines without a known price, count as free.
func MinimumCost(spec *service.Spec) float64 {
	usd := catalogue.BalancersPerHour(spec)
	for _, r := range spec.Regions {
		if !isCloudRegion(r.Name) {
			continue
		}
		for i := range spec.Models {
			m := &spec.Models[i]
			n := spec.BoundsFor(m.Name, r.Name).Min
			if len(r.Capacity) != 1 || r.Capacity[0] != service.CapacityOnDemand {
				n = 0
			}
			usd += float64(n) * cheapestOnDemand(m, r.Name.Cloud())
		}
	}
	return usd
}

// cheapestOnDemand returns the lowest on-demand price of a replica of a model in USD per hour; 0 if one of
// its GPUs has no known price.
func cheapestOnDemand(m *service.Model, cloud string) (lowest float64) {
	for i, g := range gpusOf(m) {
		usd := g.Price
		if usd == 0 {
			if usd, _ = catalogue.ListPrice(cloud, g.Type, g.Count); usd > 0 {
				usd += catalogue.LocalSSDPrice(cloud, g)
			}
		}
		if i == 0 || usd < lowest {
			lowest = usd
		}
	}
	return lowest
}
