package main

import (
	"strings"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision/cloud"
)

// startText returns the reason of a machine, with its start: of a replica that is starting the current
// phases with their times, of a ready one the time that it needed. Processes on this computer start
// within seconds.
func startText(region service.Region, m deploy.MachineStatus) string {
	s := m.Start
	switch {
	case s == nil || cloud.RunsOnThisComputer(region):
		return m.Reason
	case m.State == service.StateReady && s.Ready:
		return strings.TrimPrefix(m.Reason+"; ready in "+shortTime(s.Seconds), "; ")
	case m.State == service.StateStarting || m.State == service.StateProvisioning:
		return strings.TrimSuffix(s.Summary()+"; "+m.Reason, "; ")
	}
	return m.Reason
}

// shortTime formats a duration in whole seconds.
func shortTime(seconds float64) string {
	return (time.Duration(seconds) * time.Second).String()
}
