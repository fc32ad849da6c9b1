package testcloud

import "slices"

// GCEFailure is the error of a failed operation.
type GCEFailure struct {
	Code    string // ZONE_RESOURCE_POOL_EXHAUSTED
	Message string
	// KeepInstance keeps a machine that did not start, in the state stopped; false = it is removed.
	KeepInstance bool
}

// gceStock is a capacity pool of a zone: a machine type in one provisioning model.
type gceStock struct{ zone, kind, model string }

// gceLimit identifies a quota; an empty region means the project.
type gceLimit struct{ region, metric string }

// SetOperationCalls sets the number of calls after which an operation is done; 0 = at once. The default is 1.
func (g *GCE) SetOperationCalls(n int) { g.withLock(func() { g.steps = n }) }

// SetPageSize sets the maximum page size of lists; 0 = unlimited.
func (g *GCE) SetPageSize(n int) { g.withLock(func() { g.pageSize = n }) }

// SetStock sets the remaining number of machines that a zone can start of a machine type and a provisioning
// model, STANDARD, SPOT or FLEX_START. Deleted machines do not return to the stock.
func (g *GCE) SetStock(zone, machineType, model string, n int) {
	g.withLock(func() { g.stock[gceStock{zone, machineType, model}] = n })
}

// SetQuota sets the quota of a region for a metric; an empty region means the project.
func (g *GCE) SetQuota(region, metric string, limit float64) {
	g.withLock(func() { g.limits[gceLimit{region, metric}] = limit })
}

// SetDefaultServiceAccount sets the project's default service account; empty = it has none.
func (g *GCE) SetDefaultServiceAccount(email string) { g.withLock(func() { g.account = email }) }

// RemoveMachineType removes a machine type from a zone.
func (g *GCE) RemoveMachineType(zone, machineType string) {
	g.withLock(func() { g.missingTypes[zone] = append(g.missingTypes[zone], machineType) })
}

// MakeZoneUnreachable makes lists omit a zone and contain a warning code for it, such as UNREACHABLE. An empty
// zone restores all zones.
func (g *GCE) MakeZoneUnreachable(zone, code string) {
	g.withLock(func() { g.silentZone, g.silenceCode = zone, code })
}

// RequireToken makes every call require an access token.
func (g *GCE) RequireToken(token string) { g.withLock(func() { g.token = token }) }

// DenyPermissions removes permissions from the operator.
func (g *GCE) DenyPermissions(permissions ...string) { g.withLock(func() { g.denied = permissions }) }

// FailCalls makes every call of an action fail with an error. Status 0 ends the failures.
func (g *GCE) FailCalls(action string, status int, reason, message string) {
	g.withLock(func() {
		delete(g.refusals, action)
		if status != 0 {
			g.refusals[action] = &gceError{status, reason, message}
		}
	})
}

// FailOperations makes the operations of an action, such as compute.instances.insert, fail. An empty code ends
// the failures.
func (g *GCE) FailOperations(action string, f GCEFailure) {
	g.withLock(func() {
		delete(g.failures, action)
		if f.Code != "" {
			g.failures[action] = f
		}
	})
}

// PreemptInstance preempts a spot instance: it stops or deletes the instance, according to its scheduling
// options. It reports whether there is such an instance.
func (g *GCE) PreemptInstance(name string) (found bool) {
	g.withLock(func() {
		for _, at := range g.instances.keys() {
			i, _ := g.instances.get(at)
			if i.Name != name || i.Scheduling.ProvisioningModel != gceSpot {
				continue
			}
			found = true
			i.stopPrograms()
			if i.Scheduling.InstanceTerminationAction == "DELETE" {
				g.instances.removeObject(at, g.faults.StaleLists)
				continue
			}
			i.Status = gceTerminated
			g.instances.setObject(at, i)
		}
	})
	return found
}

// SetInstanceStatus sets the status of every instance with a name, like a user in the console, and ends its
// programs.
func (g *GCE) SetInstanceStatus(name, status string) {
	g.editInstances(name, func(i *GCEInstance) {
		i.stopPrograms()
		i.Status = status
	})
}

// SetGuestAttribute writes a guest attribute on behalf of the instances with a name. Instances created
// without enable-guest-attributes ignore it.
func (g *GCE) SetGuestAttribute(name, path, value string) {
	g.editInstances(name, func(i *GCEInstance) {
		if slices.Contains(i.Metadata.Items, GCEMetadataItem{Key: "enable-guest-attributes", Value: "TRUE"}) {
			i.guest = map[string]string{path: value}
		}
	})
}

func (g *GCE) editInstances(name string, edit func(*GCEInstance)) {
	g.withLock(func() {
		for _, at := range g.instances.keys() {
			if i, _ := g.instances.get(at); i.Name == name {
				edit(&i)
				g.instances.setObject(at, i)
			}
		}
	})
}

// EditFirewall changes a firewall rule, like a user in the console. It reports whether the rule exists.
func (g *GCE) EditFirewall(name string, edit func(*GCEFirewall)) (found bool) {
	g.withLock(func() {
		var f GCEFirewall
		if f, found = g.firewalls.get(name); found {
			edit(&f)
			g.firewalls.setObject(name, f)
		}
	})
	return found
}

// Instances returns the current state of all instances, sorted by zone and name.
func (g *GCE) Instances() (all []GCEInstance) {
	g.withLock(func() { all = g.instances.all() })
	return all
}

// Firewalls returns the current state of all firewall rules, sorted by name.
func (g *GCE) Firewalls() (all []GCEFirewall) {
	g.withLock(func() { all = g.firewalls.all() })
	return all
}

func (g *GCE) withLock(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}
