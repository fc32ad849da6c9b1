package static

import (
	"cmp"
	"strings"

	"skyserve/internal/service"
)

// Replicas returns the endpoints of a static region as replicas, in the order of the file, without DNS names. If the service
// has one model, every endpoint serves that model. If it has several, the balancer requests the name of the
// model from each endpoint when it attaches the endpoint.
func Replicas(spec *service.Spec, region service.RegionSpec) []service.ReplicaConfig {
	return replicasOf(spec, region, func(endpoint string) bool { return !service.IsDiscovered(endpoint) })
}

// Names returns the endpoints of a static region that are DNS names, which balancers resolve.
func Names(spec *service.Spec, region service.RegionSpec) []service.ReplicaConfig {
	return replicasOf(spec, region, service.IsDiscovered)
}

// replicasOf returns the endpoints that are included.
func replicasOf(spec *service.Spec, region service.RegionSpec, includes func(endpoint string) bool) []service.ReplicaConfig {
	var replicas []service.ReplicaConfig
	for _, endpoint := range region.Endpoints {
		if !includes(endpoint.URL) {
			continue
		}
		r := service.ReplicaConfig{
			ID:     id(region.Name, endpoint.URL),
			URL:    service.BaseURL(endpoint.URL),
			Region: region.Name,
			APIKey: endpoint.APIKey,
		}
		if len(spec.Models) == 1 {
			m := spec.Models[0]
			r.Model, r.Kind, r.APIKey = m.Name, m.Engine.Kind, cmp.Or(endpoint.APIKey, m.Engine.APIKey)
			r.DataParallel, r.MaxNumSeqs = m.Engine.DataParallel, m.Engine.MaxNumSeqs
			if len(m.GPUs) > 0 {
				r.GPU = m.GPUs[0].Type
			}
		}
		replicas = append(replicas, r)
	}
	return replicas
}

// id returns the id of an endpoint from its region and address, so that it does not depend on the other
// lines of the file: paris-10-0-0-7-8000.
func id(region service.Region, endpoint string) string {
	_, address, found := strings.Cut(endpoint, "://")
	if !found {
		address = endpoint
	}
	words := strings.FieldsFunc(strings.ToLower(address), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(append([]string{region.ShortName()}, words...), "-")
}
