package service

import "strings"

// IsDiscovered reports whether an endpoint of a static region is a DNS name, dns+http://HOST:PORT or
// srv+http://NAME: balancers resolve it, and each of its addresses is a replica.
func IsDiscovered(endpoint string) bool {
	return strings.HasPrefix(endpoint, "dns+") || strings.HasPrefix(endpoint, "srv+")
}

// hasEndpoints reports whether the region lists machines, or where they are listed.
func (r *RegionSpec) hasEndpoints() bool { return len(r.Endpoints) > 0 || r.EndpointsFile != "" }

// DiscoversReplicas reports whether balancers of a static region find replicas that its bounds do not count.
func (r *RegionSpec) DiscoversReplicas() bool {
	return r.Name.Cloud() == CloudStatic && (r.EndpointsFile != "" || len(r.Endpoints) > r.fixedEndpoints())
}

// fixedEndpoints returns the number of endpoints that are not discovered.
func (r *RegionSpec) fixedEndpoints() int {
	n := 0
	for _, e := range r.Endpoints {
		if !IsDiscovered(e.URL) {
			n++
		}
	}
	return n
}
