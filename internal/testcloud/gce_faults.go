package testcloud

import "slices"

// GCEFailure is how an operation ends that does not succeed.
type GCEFailure struct {
	Code    string // ZONE_RESOURCE_POOL_EXHAUSTED
	Message string
	// Stays leaves a machine that could not be started, stopped, instead of taking it away.
	Stays bool
}

// gceStock is what a zone may run out of: a machine type in one provisioning model.
type gceStock struct{ zone, kind, model string }

// gceLimit is a quota; the empty region is the project.
type gceLimit struct{ region, metric string }

// SetSteps sets how many calls later an operation is done; 0 = at once. It is 1 at first.
func (g *GCE) SetSteps(n int) { g.locked(func() { g.steps = n }) }

// SetPageSize sets how much a list shows at most; 0 = all of it.
func (g *GCE) SetPageSize(n int) { g.locked(func() { g.pageSize = n }) }

// SetStock sets how many machines of a type a zone still has in a provisioning
// model, STANDARD or SPOT. What goes does not come back.
func (g *GCE) SetStock(zone, machineType, model string, n int) {
	g.locked(func() { g.stock[gceStock{zone, machineType, model}] = n })
}

// SetQuota sets how much of a metric a region may have; the empty region is the project.
func (g *GCE) SetQuota(region, metric string, limit float64) {
	g.locked(func() { g.limits[gceLimit{region, metric}] = limit })
}

// SetDefaultAccount sets the project's default service account; empty = it has none.
func (g *GCE) SetDefaultAccount(email string) { g.locked(func() { g.account = email }) }

// Lack takes a machine type from a zone.
func (g *GCE) Lack(zone, machineType string) {
	g.locked(func() { g.lacking[zone] = append(g.lacking[zone], machineType) })
}

// Silence keeps a zone from answering lists, which then only warn by a code such as
// UNREACHABLE; an empty zone ends that.
func (g *GCE) Silence(zone, code string) { g.locked(func() { g.silent, g.silence = zone, code }) }

// RequireToken makes every call need an access token.
func (g *GCE) RequireToken(token string) { g.locked(func() { g.token = token }) }

// Deny takes permissions from the caller.
func (g *GCE) Deny(permissions ...string) { g.locked(func() { g.denied = permissions }) }

// Refuse answers every call of an action with an error; status 0 ends that.
func (g *GCE) Refuse(action string, status int, reason, message string) {
	g.locked(func() {
		delete(g.refusals, action)
		if status != 0 {
			g.refusals[action] = &gceError{status, reason, message}
		}
	})
}

// Fail lets operations of an action, such as compute.instances.insert, end in an
// error; an empty code ends that.
func (g *GCE) Fail(action string, f GCEFailure) {
	g.locked(func() {
		delete(g.failures, action)
		if f.Code != "" {
			g.failures[action] = f
		}
	})
}

// Preempt takes a spot instance away, by stopping or deleting it as its scheduling
// says. It says whether there is such an instance.
func (g *GCE) Preempt(name string) (found bool) {
	g.locked(func() {
		for _, at := range g.instances.keys() {
			i, _ := g.instances.get(at)
			if i.Name != name || i.Scheduling.ProvisioningModel != gceSpot {
				continue
			}
			found = true
			i.halt()
			if i.Scheduling.InstanceTerminationAction == "DELETE" {
				g.instances.remove(at, g.faults.Unseen)
				continue
			}
			i.Status = gceTerminated
			g.instances.set(at, i)
		}
	})
	return found
}

// SetStatus gives every instance of a name another status, as somebody does who stops it by hand.
func (g *GCE) SetStatus(name, status string) {
	g.editInstances(name, func(i *GCEInstance) {
		i.halt()
		i.Status = status
	})
}

// SetGuestAttribute writes an attribute as the instances of a name do from inside;
// those that were made without enable-guest-attributes cannot.
func (g *GCE) SetGuestAttribute(name, path, value string) {
	g.editInstances(name, func(i *GCEInstance) {
		if slices.Contains(i.Metadata.Items, GCEMetadataItem{Key: "enable-guest-attributes", Value: "TRUE"}) {
			i.guest = map[string]string{path: value}
		}
	})
}

func (g *GCE) editInstances(name string, edit func(*GCEInstance)) {
	g.locked(func() {
		for _, at := range g.instances.keys() {
			if i, _ := g.instances.get(at); i.Name == name {
				edit(&i)
				g.instances.set(at, i)
			}
		}
	})
}

// EditFirewall changes a firewall rule by hand. It says whether there is one.
func (g *GCE) EditFirewall(name string, edit func(*GCEFirewall)) (found bool) {
	g.locked(func() {
		var f GCEFirewall
		if f, found = g.firewalls.get(name); found {
			edit(&f)
			g.firewalls.set(name, f)
		}
	})
	return found
}

// Instances are all instances as they are, in the order of zone and name.
func (g *GCE) Instances() (all []GCEInstance) {
	g.locked(func() { all = g.instances.all() })
	return all
}

// Firewalls are all firewall rules as they are, by name.
func (g *GCE) Firewalls() (all []GCEFirewall) {
	g.locked(func() { all = g.firewalls.all() })
	return all
}

func (g *GCE) locked(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}
