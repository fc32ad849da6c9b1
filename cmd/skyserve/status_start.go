package main

import (
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision/cloud"
)

// startText returns the reason of a machine, with its start. Processes on this computer start within
// seconds.
func startText(region service.Region, m deploy.MachineStatus) string {
	if cloud.RunsOnThisComputer(region) {
		return m.Reason
	}
	return telemetry.StartReason(m.Start, m.State, m.Reason)
}
