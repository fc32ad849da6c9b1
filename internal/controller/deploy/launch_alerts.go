package deploy

import (
	"fmt"
	"strings"

	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// interruptionAlerts returns an alert for each replica whose machine its cloud interrupts, as long as the machine
// exists: its balancer stops using it and then no longer shows it.
func interruptionAlerts(have []provision.Object, seen map[string]AgentReport) (alerts []telemetry.Alert) {
	taken := interrupted(have, seen)
	for _, o := range have {
		if taken[o.ID] {
			alerts = append(alerts, telemetry.Alert{
				Severity: telemetry.SeverityWarning, Kind: telemetry.AlertInterruption, Region: o.Region, Object: o.ID,
				Message: "the cloud interrupts its machine: " + seen[o.ID].Reason, NextStep: "none: a replacement starts ('skyserve events' shows it)",
			})
		}
	}
	return alerts
}

// launchAlerts returns the alerts about launches: bounds that hold some now, models whose replicas never
// become ready, and machines with a failed GPU.
func launchAlerts(l *telemetry.Launches, held []*provision.HeldError, retired map[string]seenReplica) []telemetry.Alert {
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
		case provision.HeldByLaunches:
			add(telemetry.AlertLaunch, "max_launches_per_hour", h.Reason, "find out why so many machines are launched; or raise autoscale.max_launches_per_hour")
		case provision.HeldByBackoff: // see below
		}
	}
	for _, b := range l.Backoffs {
		if b.Model != "" {
			add(telemetry.AlertLaunch, strings.TrimSpace(b.Model+" "+string(b.Region)+" "+b.Offering), b.Line, "read the log lines of the last failure in 'skyserve status'; changing the model in service.yaml ends the backoff")
		}
	}
	for id, s := range retired {
		if s.UnhealthyKind == unhealthyGPU {
			add(telemetry.AlertGPU, id, fmt.Sprintf("%s; it receives no requests and is being replaced", s.UnhealthyReason), "")
		}
	}
	return telemetry.MergeAlerts(alerts)
}
