package main

import (
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

func TestStatusShowsStarts(t *testing.T) {
	pulls := &telemetry.Start{Seconds: 250, Phases: []telemetry.StartPhase{
		{Name: telemetry.StartBoot, Seconds: 60},
		{Name: telemetry.StartImage, Seconds: 190, Running: true},
		{Name: telemetry.StartWeights, Seconds: 185, Running: true, Bytes: &telemetry.ByteCount{Done: 6.6e9, Total: 16.1e9}},
	}}
	ready := &telemetry.Start{Seconds: 492, Ready: true, Phases: []telemetry.StartPhase{{Name: telemetry.StartLoad, Seconds: 492}}}
	for _, tt := range []struct {
		region service.Region
		m      deploy.MachineStatus
		want   string
	}{
		{"aws/us-east-1", deploy.MachineStatus{State: service.StateStarting, Reason: "image: vllm", Start: pulls}, "image 3m10s, weights 3m5s 40 % of 16.1 GB; image: vllm"},
		{"aws/us-east-1", deploy.MachineStatus{State: service.StateReady, Start: ready}, "ready in 8m12s"},
		{"aws/us-east-1", deploy.MachineStatus{State: service.StateReady, Start: ready, Reason: "its KV cache is small"}, "its KV cache is small; ready in 8m12s"},
		{"aws/us-east-1", deploy.MachineStatus{State: service.StateFailed, Start: pulls, Reason: "no_space: full"}, "no_space: full"},
		{"aws/us-east-1", deploy.MachineStatus{State: service.StateReady}, ""},
		{"local/us", deploy.MachineStatus{State: service.StateReady, Start: ready}, ""},
	} {
		if got := startText(tt.region, tt.m); got != tt.want {
			t.Errorf("%s %s: got %q, want %q", tt.region, tt.m.State, got, tt.want)
		}
	}
}
