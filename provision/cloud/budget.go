package cloud

import (
	"fmt"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// BudgetConflict returns why autoscale.budget cannot hold the smallest service; empty if it can, or if that
// is unknown. It counts the balancers, and the replicas of replicas.min that are on demand in any case, at
// the prices of service.yaml or the list prices.
func BudgetConflict(spec *service.Spec) string {
	budget := spec.BudgetPerHour()
	least := MinimumCost(spec)
	if budget == 0 || least <= budget {
		return ""
	}
	return fmt.Sprintf("must be at least $%.2f, the list price of the balancers and of replicas.min", least)
}

// MinimumCost returns a lower bound of the cost of a service's machines, in USD per hour. Spot and reserved
// machines count as free: their prices are known only at launch.
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
func cheapestOnDemand(m *service.Model, cloud string) (least float64) {
	for i, g := range gpusOf(m) {
		usd := g.Price
		if usd == 0 {
			if usd, _ = catalogue.ListPrice(cloud, g.Type, g.Count); usd > 0 {
				usd += catalogue.LocalSSDPrice(cloud, g)
			}
		}
		if i == 0 || usd < least {
			least = usd
		}
	}
	return least
}
