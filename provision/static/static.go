package static

import (
	"strings"

	"skyserve/internal/service"
)

// Replicas returns the endpoints of a static region as replicas, in the order of the file. If the service
// has one model, every endpoint serves that model. If it has several, the balancer requests the name of the
// model from each endpoint when it attaches the endpoint.
func Replicas(spec *service.Spec, region service.RegionSpec) []service.ReplicaConfig {
	var replicas []service.ReplicaConfig
	for _, endpoint := range region.Endpoints {
		r := service.ReplicaConfig{
			ID:     id(region.Name, endpoint),
			URL:    strings.TrimRight(endpoint, "/"),
			Region: region.Name,
		}
		if len(spec.Models) == 1 {
			m := spec.Models[0]
			r.Model, r.Kind = m.Name, m.Engine.Kind
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
	return strings.Join(append([]string{region.Place()}, words...), "-")
}
