package testcloud

import (
	"net/http"
	"path"
	"slices"
	"strings"
)

// gceNetwork is a network of the project.
type gceNetwork struct {
	// custom is the subnet mode. A network in custom mode has these subnets, by region. A network in automatic
	// mode has one subnet with the network's name in each region.
	custom  bool
	subnets map[string][]string
}

func (n gceNetwork) subnetsIn(name, region string) []string {
	if n.custom {
		return n.subnets[region]
	}
	return []string{name}
}

// SetNetworks replaces the networks by networks in automatic mode.
func (g *GCE) SetNetworks(names ...string) {
	g.withLock(func() {
		g.networks = map[string]gceNetwork{}
		for _, name := range names {
			g.networks[name] = gceNetwork{}
		}
	})
}

// SetSubnets changes a network to custom mode and sets its subnets in a region.
func (g *GCE) SetSubnets(network, region string, names ...string) {
	g.withLock(func() {
		n := g.networks[network]
		if n.subnets == nil {
			n = gceNetwork{custom: true, subnets: map[string][]string{}}
		}
		n.subnets[region] = names
		g.networks[network] = n
	})
}

// resolveNetwork returns the link of the network that a request's field refers to.
func (g *GCE) resolveNetwork(field, at string) (string, *gceError) {
	name := path.Base(at)
	link := g.link("global/networks/" + name)
	if _, ok := g.networks[name]; !ok || !strings.HasSuffix(at, "global/networks/"+name) {
		return "", newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field '%s': '%s'. The referenced network resource cannot be found.", field, link)
	}
	return link, nil
}

func (g *GCE) getNetwork(r *http.Request) (any, *gceError) {
	name := r.PathValue("name")
	n, ok := g.networks[name]
	if !ok {
		return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/global/networks/%s' was not found", g.project, name)
	}
	return map[string]any{"kind": "compute#network", "name": name, "selfLink": g.link("global/networks/" + name), "autoCreateSubnetworks": !n.custom}, nil
}

func (g *GCE) getSubnet(r *http.Request) (any, *gceError) {
	region, name := r.PathValue("region"), r.PathValue("name")
	for network, n := range g.networks {
		if _, known := gceZones[region]; known && slices.Contains(n.subnetsIn(network, region), name) {
			return map[string]any{
				"kind": "compute#subnetwork", "name": name, "selfLink": g.link("regions/" + region + "/subnetworks/" + name),
				"network": g.link("global/networks/" + network), "region": g.link("regions/" + region),
			}, nil
		}
	}
	return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/regions/%s/subnetworks/%s' was not found", g.project, region, name)
}

// attachInterface resolves the network and subnet of an interface.
func (g *GCE) attachInterface(zone string, nic *GCEInterface) *gceError {
	const field = "resource.networkInterfaces[0]"
	network, fail := g.resolveNetwork(field+".network", nic.Network)
	if fail != nil {
		return fail
	}
	name, region := path.Base(network), gceRegion(zone)
	n := g.networks[name]
	subnet := path.Base(nic.Subnet)
	switch {
	case nic.Subnet == "" && n.custom:
		return newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field '%s.subnetwork': ''. Network interface must specify a subnet if the network resource is in custom subnet mode.", field)
	case nic.Subnet == "":
		subnet = name
	case !strings.HasSuffix(nic.Subnet, "regions/"+region+"/subnetworks/"+subnet), !slices.Contains(n.subnetsIn(name, region), subnet):
		return newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field '%s.subnetwork': '%s'. The referenced subnetwork resource cannot be found.", field, nic.Subnet)
	}
	nic.Network, nic.Subnet = network, g.link("regions/"+region+"/subnetworks/"+subnet)
	return nil
}
