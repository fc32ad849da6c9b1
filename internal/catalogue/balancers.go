package catalogue

import "skyserve/internal/service"

// BalancersPerHour returns the list price of a service's balancers in clouds, in USD per hour.
func BalancersPerHour(spec *service.Spec) (usd float64) {
	for _, r := range spec.Regions {
		if cloud := r.Name.Cloud(); cloud == service.CloudAWS || cloud == service.CloudGCP {
			price, _ := ListPrice(cloud, "", 0)
			usd += float64(r.Balancers) * price
		}
	}
	return usd
}
