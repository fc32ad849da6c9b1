package deploy

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// interruptionAlerts returns an alert for each replica whose machine its cloud interrupts, as long as the machine
// exists: its balancer stops using it and then no longer shows it.
func interruptionAlerts(have []provision.Object, seen map[string]AgentReport) (alerts []telemetry.Alert) {
	interruptedIDs := interrupted(have, seen)
	for _, o := range have {
		if interruptedIDs[o.ID] {
			alerts = append(alerts, telemetry.Alert{
				Severity: telemetry.SeverityWarning, Kind: telemetry.AlertInterruption, Region: o.Region, Object: o.ID,
				Message: "the cloud interrupts its machine: " + seen[o.ID].Reason, NextStep: "no action is needed: a replacement starts ('skyserve events' shows it)",
			})
		}
	}
	return alerts
}

// launchAlerts returns the alerts about launches: bounds that hold some now, models whose replicas never
// become ready, and machines with a failed GPU.
func launchAlerts(l *telemetry.Launches, held []*provision.HeldError, unhealthy map[string]seenReplica) []telemetry.Alert {
	if l == nil {
		return nil
	}
	var alerts []telemetry.Alert
	add := func(kind, object, message, next string) {
		alerts = append(alerts, telemetry.Alert{Severity: telemetry.SeverityWarning, Kind: kind, Object: object, Message: message, NextStep: next})
	}
	for _, h := range held {
		switch h.Kind {
		case provision.HeldByBudget:
			add(telemetry.AlertBudget, telemetry.AlertBudget, "the budget blocks launches: "+h.ID+": "+h.Reason, "raise autoscale.budget, or lower replicas.min or max")
		case provision.HeldByPrice:
			add(telemetry.AlertBudget, telemetry.AlertBudget, "the budget blocks launches: "+h.ID+": "+h.Reason, provision.NextStepUnknownPrice)
		case provision.HeldByLaunches:
			add(telemetry.AlertLaunch, "max_launches_per_hour", h.Reason, "find out why so many machines are launched; or raise autoscale.max_launches_per_hour")
		case provision.HeldByBackoff, provision.HeldByQuota, provision.HeldByCapacity: // see below
		}
	}
	for _, r := range refusedByRegion(held) {
		add(telemetry.AlertLaunch, string(r.region), "cannot launch "+strings.Join(r.ids, ", ")+": "+r.reason, r.nextStep)
	}
	for _, b := range l.Backoffs {
		if b.Model != "" {
			add(telemetry.AlertLaunch, strings.TrimSpace(b.Model+" "+string(b.Region)+" "+b.Offering), b.Line, "read the log lines of the last failure in 'skyserve status'; changing the model in service.yaml ends the backoff")
		}
	}
	for id, s := range unhealthy {
		if s.UnhealthyKind == unhealthyGPU {
			add(telemetry.AlertGPU, id, fmt.Sprintf("%s; it receives no requests and is being replaced", s.UnhealthyReason), "")
		}
	}
	return telemetry.MergeAlerts(alerts)
}

// refusedLaunches are the launches that the cloud of a region refuses.
type refusedLaunches struct {
	region           service.Region
	ids              []string
	reason, nextStep string
}

// refusedByRegion returns the refused launches of each region, one entry per region, with the sorted IDs and every
// reason. Concurrent launches have different reasons: each attempts only the offerings that no other launch has found
// without capacity. Balancers have alerts of their own: balancerAlerts.
func refusedByRegion(held []*provision.HeldError) (all []refusedLaunches) {
	for _, h := range held {
		if !isRefused(h) || provision.IsBalancerID(h.ID) {
			continue
		}
		at := slices.IndexFunc(all, func(r refusedLaunches) bool { return r.region == h.Region })
		if at < 0 {
			next := "launches are repeated every 10 minutes; or list another capacity type, GPU or region in service.yaml"
			if h.Kind == provision.HeldByQuota {
				next = "raise the quota at the cloud ('skyserve offers' shows it), or list another capacity type, GPU or region in service.yaml"
			}
			at, all = len(all), append(all, refusedLaunches{region: h.Region, reason: h.Reason, nextStep: next})
		}
		all[at].ids = append(all[at].ids, h.ID)
		if !strings.Contains(all[at].reason, h.Reason) {
			all[at].reason += "; " + h.Reason
		}
	}
	for i := range all {
		slices.Sort(all[i].ids)
	}
	return all
}

// isRefused reports whether a cloud refused a launch.
func isRefused(h *provision.HeldError) bool {
	return h.Kind == provision.HeldByQuota || h.Kind == provision.HeldByCapacity
}

// refusedLaunch returns a launch for which no offering has capacity. While offerings are skipped because they had none
// recently, it returns its earlier refusal, or that of another launch in the region; nil if there was none.
func (st *launchState) refusedLaunch(e *provision.AllOfferingsExhaustedError) *provision.HeldError {
	h := &provision.HeldError{ID: e.ID, Region: e.Region, Kind: provision.HeldByCapacity}
	var attempts []string
	for _, a := range e.Attempted {
		attempts = append(attempts, a.Offering.String()+": "+a.Code)
		if a.Scope == provision.ScopeQuota {
			h.Kind = provision.HeldByQuota
		}
	}
	reason := "no capacity: "
	if h.Kind == provision.HeldByQuota {
		reason = "the quota is exhausted: "
	}
	h.Reason = reason + strings.Join(attempts, "; ")
	if len(attempts) == 0 {
		at := slices.IndexFunc(st.held, func(old *provision.HeldError) bool { return isRefused(old) && old.ID == e.ID })
		if at < 0 {
			at = slices.IndexFunc(st.held, func(old *provision.HeldError) bool { return isRefused(old) && old.Region == e.Region })
		}
		if at < 0 {
			return nil
		}
		h.Kind, h.Reason = st.held[at].Kind, st.held[at].Reason
	}
	return h
}
