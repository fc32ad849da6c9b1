package proxy

import (
	"fmt"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

func TestTrafficOfTheLastMinute(t *testing.T) {
	var table trafficTable[string]
	served, failed := telemetry.Outcomes{Served: 1}, telemetry.Outcomes{Failed: 1}
	used := telemetry.Usage{Requests: 1, PromptTokens: 100, OutputTokens: 10, PricedRequests: 1, Cost: 500}
	table.window(0, "llama", "other").addRequest(time.Second, served, used, 200*time.Millisecond, time.Second)
	table.window(0, "llama", "other").addRequest(30*time.Second, failed, telemetry.Usage{}, 0, 0)

	tests := []struct {
		at       time.Duration
		outcomes telemetry.Outcomes
		usage    telemetry.Usage
		seconds  float64
		latency  bool
	}{
		{30 * time.Second, telemetry.Outcomes{Served: 1, Failed: 1}, used, 30, true},
		{61 * time.Second, failed, telemetry.Usage{}, 56, false},
		{64 * time.Second, failed, telemetry.Usage{}, 59, false},
	}
	for _, tt := range tests {
		got := table.list(tt.at)["llama"]
		if got.Outcomes != tt.outcomes || got.Usage != tt.usage || got.Seconds != tt.seconds || (got.TTFT != nil) != tt.latency || (got.E2E != nil) != tt.latency {
			t.Errorf("at %v: got %+v, want %+v", tt.at, got, tt)
		}
	}
	if got := table.list(2 * time.Minute); len(got) != 0 {
		t.Errorf("two minutes later %v is listed", got)
	}
}

// However many keys there are, the memory is bounded: names without requests are replaced, and what does not
// fit is counted as other.
func TestTrafficIsBounded(t *testing.T) {
	var table trafficTable[string]
	add := func(at time.Duration, name string) {
		table.window(at, name, "other").addRequest(at, telemetry.Outcomes{Served: 1}, telemetry.Usage{}, 0, time.Millisecond)
	}
	for i := range maxTraffic + 50 {
		add(0, fmt.Sprintf("key-%d", i))
	}
	list := table.list(time.Second)
	if len(list) != maxTraffic+1 || list["other"].Outcomes.Served != 50 {
		t.Errorf("%d names, other served %d", len(list), list["other"].Outcomes.Served)
	}
	add(2*time.Minute, "late")
	if list := table.list(2 * time.Minute); len(list) != 1 || list["late"].Outcomes.Served != 1 {
		t.Errorf("after two minutes: %v", list)
	}
	if n := len(table.windows); n > 2 {
		t.Errorf("%d windows remain", n)
	}
}
