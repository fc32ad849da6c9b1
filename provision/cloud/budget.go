package cloud

import (
	"fmt"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// BudgetProblem returns why autoscale.budget is too low, that is, below MinimumCost. The text does not contain the key. It
// is empty if the budget is high enough, or if there is none.
func BudgetProblem(spec *service.Spec) string {
	budget := spec.BudgetPerHour()
	minimum := MinimumCost(spec)
	if budget == 0 || minimum <= budget {
		return ""
	}
	return fmt.Sprintf("must be at least $%.2f, the price of the balancers and of replicas.min", minimum)
}

// MinimumCost returns a lower bound of the cost of a service's machines, in USD per hour: the balancers, and
// replicas.min in regions whose only capacity type is on demand, at the prices of service.yaml or else the list
// prices. Replicas in other regions count as free, because the capacity type and price of a machine are known only at
// launch. Machines without a known price count as free too.
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
