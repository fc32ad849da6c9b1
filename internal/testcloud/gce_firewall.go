package testcloud

import (
	"cmp"
	"net/http"

	"skyserve/internal/service"
)

// GCEFirewall is a firewall rule of the project.
type GCEFirewall struct {
	Kind         string        `json:"kind,omitempty"`
	ID           string        `json:"id,omitempty"`
	SelfLink     string        `json:"selfLink,omitempty"`
	Name         string        `json:"name"`
	Description  string        `json:"description,omitempty"`
	Network      string        `json:"network,omitempty"`
	Direction    string        `json:"direction,omitempty"`
	Priority     *int          `json:"priority,omitempty"`
	Disabled     bool          `json:"disabled,omitempty"`
	SourceRanges []string      `json:"sourceRanges,omitempty"`
	SourceTags   []string      `json:"sourceTags,omitempty"`
	TargetTags   []string      `json:"targetTags,omitempty"`
	Allowed      []GCEProtocol `json:"allowed,omitempty"`
	Denied       []GCEProtocol `json:"denied,omitempty"`
}

// GCEProtocol is a protocol, with ports, that a firewall rule allows or denies.
type GCEProtocol struct {
	Protocol string   `json:"IPProtocol"`
	Ports    []string `json:"ports,omitempty"`
}

var gceName = service.LazyPattern(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

// readFirewall decodes and validates a rule, and sets the defaults of omitted fields.
func (g *GCE) readFirewall(r *http.Request) (f GCEFirewall, fail *gceError) {
	if fail := decodeGCE(r, &f); fail != nil {
		return f, fail
	}
	network, fail := g.resolveNetwork("resource.network", cmp.Or(f.Network, "global/networks/default"))
	switch {
	case fail != nil:
		return f, fail
	case !gceName().MatchString(f.Name):
		return f, newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'resource.name': '%s'. Must be a match of regex '%s'", f.Name, gceName())
	case len(f.Description) > 2048:
		return f, newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'resource.description': the value is too long")
	case (len(f.Allowed) == 0) == (len(f.Denied) == 0):
		return f, newGCEError(http.StatusBadRequest, "invalid", "Exactly one of 'allowed' and 'denied' must be specified")
	}
	for _, tag := range append(append([]string{}, f.SourceTags...), f.TargetTags...) {
		if !gceName().MatchString(tag) {
			return f, newGCEError(http.StatusBadRequest, "invalid", "Invalid value for a tag: '%s'", tag)
		}
	}
	f.Network, f.Direction = network, cmp.Or(f.Direction, "INGRESS")
	if f.Priority == nil {
		f.Priority = new(1000)
	}
	if len(f.SourceRanges) == 0 && len(f.SourceTags) == 0 {
		f.SourceRanges = []string{"0.0.0.0/0"}
	}
	return f, nil
}

func (g *GCE) insertFirewall(r *http.Request) (any, *gceError) {
	if op := g.repeatedOperation(r); op != nil {
		return op, nil
	}
	f, fail := g.readFirewall(r)
	if fail != nil {
		return nil, fail
	}
	if fail := g.require(r, g.projectResource(), "compute.networks.updatePolicy"); fail != nil {
		return nil, fail
	}
	target := "global/firewalls/" + f.Name
	if _, ok := g.firewalls.get(f.Name); ok {
		return nil, newGCEError(http.StatusConflict, "alreadyExists", "The resource 'projects/%s/%s' already exists", g.project, target)
	}
	f.Kind, f.ID, f.SelfLink = "compute#firewall", g.nextNumber(), g.link(target)
	g.firewalls.addObject(f.Name, f, g.faults.StaleLists)
	return g.startOperation(r, "", "insert", target, func() *GCEFailure {
		failure := g.injectedFailure("compute.firewalls.insert")
		if failure != nil {
			g.firewalls.removeObject(f.Name, 0)
		}
		return failure
	}), nil
}

// findFirewall returns the rule in the path of a request.
func (g *GCE) findFirewall(r *http.Request) (GCEFirewall, *gceError) {
	f, ok := g.firewalls.get(r.PathValue("name"))
	if !ok {
		return f, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/global/firewalls/%s' was not found", g.project, r.PathValue("name"))
	}
	return f, nil
}

// firewallToChange returns the rule in the path of a request, if no other change of it is in progress.
func (g *GCE) firewallToChange(r *http.Request) (GCEFirewall, *gceError) {
	f, fail := g.findFirewall(r)
	if fail == nil {
		fail = g.checkReady("global/firewalls/" + f.Name)
	}
	return f, fail
}

func (g *GCE) getFirewall(r *http.Request) (any, *gceError) {
	f, fail := g.findFirewall(r)
	return f, fail
}

func (g *GCE) updateFirewall(r *http.Request) (any, *gceError) {
	if op := g.repeatedOperation(r); op != nil {
		return op, nil
	}
	old, fail := g.firewallToChange(r)
	if fail != nil {
		return nil, fail
	}
	f, fail := g.readFirewall(r)
	if fail != nil {
		return nil, fail
	}
	if f.Network != old.Network {
		return nil, newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'resource.network': '%s'. The network of a firewall cannot be changed.", f.Network)
	}
	f.Kind, f.ID, f.SelfLink = old.Kind, old.ID, old.SelfLink
	g.firewalls.setObject(old.Name, f)
	return g.startOperation(r, "", "update", "global/firewalls/"+old.Name, func() *GCEFailure { return nil }), nil
}

func (g *GCE) deleteFirewall(r *http.Request) (any, *gceError) {
	if op := g.repeatedOperation(r); op != nil {
		return op, nil
	}
	f, fail := g.firewallToChange(r)
	if fail != nil {
		return nil, fail
	}
	return g.startOperation(r, "", "delete", "global/firewalls/"+f.Name, func() *GCEFailure {
		g.firewalls.removeObject(f.Name, g.faults.StaleLists)
		return nil
	}), nil
}

func (g *GCE) listFirewalls(r *http.Request) (any, *gceError) {
	passes, fail := gceFilter(r.FormValue("filter"))
	if fail != nil {
		return nil, fail
	}
	var all []GCEFirewall
	for _, f := range g.firewalls.listObjects() {
		if passes(func(field string) (string, bool) { return f.Name, field == "name" }) {
			all = append(all, f)
		}
	}
	page, next, fail := gcePage(r, all, g.pageSize)
	return gceList("compute#firewallList", page, next), fail
}
