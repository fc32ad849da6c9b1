package testcloud

import (
	"net/http"
	"path"
	"time"
)

// Flex-start machines, as Google's guide describes them
// (https://docs.cloud.google.com/compute/docs/instances/create-flex-start-vm and about-flex-start-vms, November 2026).
const (
	gceFlexStart = "FLEX_START"
	gcePending   = "PENDING" // Google looks for capacity
	gceMaxRun    = 7 * 24 * 60 * 60
	gceMinWait   = 90
	gceMaxWait   = 2 * 60 * 60
)

// SetFlexStartWait makes flex-start machines without capacity pending for a number of calls after their operation
// is done, before Google deletes them; those with capacity run after these calls. 0 = their operation fails, or
// is done when they run.
func (g *GCE) SetFlexStartWait(calls int) { g.withLock(func() { g.flexWait = calls }) }

// checkFlexStart rejects a flex-start machine that Google would reject, and limits of others.
func checkFlexStart(i *GCEInstance) *gceError {
	s, run, wait := i.Scheduling, i.Scheduling.MaxRunDuration.count(), 0
	if i.Params != nil {
		wait = i.Params.RequestValidForDuration.count()
	}
	invalid := func(text string) *gceError { return newGCEError(http.StatusBadRequest, "invalid", "%s", text) }
	switch {
	case s.ProvisioningModel != gceFlexStart && wait != 0:
		return invalid("params.requestValidForDuration is only supported for the provisioning model FLEX_START")
	case s.ProvisioningModel != gceFlexStart:
		return nil
	case gceMachines[path.Base(i.MachineType)].accelerators == 0:
		return invalid("Machine type " + path.Base(i.MachineType) + " does not support the provisioning model FLEX_START")
	case run < 1 || run > gceMaxRun:
		return invalid("Scheduling.maxRunDuration must be set, to at most 7 days, for the provisioning model FLEX_START")
	case wait < gceMinWait || wait > gceMaxWait:
		return invalid("params.requestValidForDuration must be from 90 seconds to 2 hours")
	case s.InstanceTerminationAction == "" || s.AutomaticRestart == nil || *s.AutomaticRestart || s.OnHostMaintenance != "TERMINATE":
		return invalid("The provisioning model FLEX_START requires instanceTerminationAction, automaticRestart false and onHostMaintenance TERMINATE")
	case i.ReservationAffinity == nil || i.ReservationAffinity.Consume != "NO_RESERVATION":
		return invalid("The provisioning model FLEX_START requires reservationAffinity NO_RESERVATION")
	}
	return nil
}

// waitForCapacity makes a flex-start machine pending; after some calls it runs, or is deleted.
func (g *GCE) waitForCapacity(i GCEInstance) {
	i.Status = gcePending
	g.instances.setObject(i.key(), i)
	id := g.nextNumber()
	g.operations[id] = &gceOperation{Name: id, Status: "RUNNING", startedAt: g.calls, dueAt: g.calls + g.flexWait, finish: func() *GCEFailure {
		pending, ok := g.instances.get(i.key())
		if !ok || pending.Status != gcePending {
			return nil
		}
		if failure := g.startFailure(pending); failure != nil {
			g.instances.removeObject(i.key(), 0)
			return nil
		}
		g.runInstance(pending)
		return nil
	}}
}

// runInstance makes an instance run. A limited run begins.
func (g *GCE) runInstance(i GCEInstance) {
	i.Status = gceRunning
	if run := i.Scheduling.MaxRunDuration.count(); run > 0 {
		end := g.now().Add(time.Duration(run) * time.Second).UTC().Format(time.RFC3339)
		i.ResourceStatus = &GCEResourceStatus{GCEScheduledEnd{TerminationTimestamp: end}}
	}
	g.boot(&i)
	g.instances.setObject(i.key(), i)
}

// EndRuns stops the machines whose limited run ends by a time.
func (g *GCE) EndRuns(by time.Time) {
	g.withLock(func() {
		for _, at := range g.instances.keys() {
			i, _ := g.instances.get(at)
			if i.ResourceStatus == nil || i.Status != gceRunning {
				continue
			}
			if end, err := time.Parse(time.RFC3339, i.ResourceStatus.Scheduling.TerminationTimestamp); err != nil || end.After(by) {
				continue
			}
			i.stopPrograms()
			i.Status = gceTerminated
			g.instances.setObject(at, i)
		}
	})
}
