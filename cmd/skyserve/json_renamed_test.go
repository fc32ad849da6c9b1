package main

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
	"skyserve/internal/sim/load"
	"skyserve/internal/telemetry"
	"skyserve/lbd/explain"
	"skyserve/lbd/record"
	"skyserve/plan"
	"skyserve/provision"
)

// Tools that read a former key find the value of the new one there.
func TestFormerJSONKeysHaveTheSameValues(t *testing.T) {
	ratio, at := 2.5, time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		document any
		former   map[string]string // by the new key
	}{
		{telemetry.LoadForecast{Deviation: "above its forecast"}, map[string]string{"deviation": "left"}},
		{deploy.ServiceStatus{Deviation: "above its forecast"}, map[string]string{"deviation": "left"}},
		{telemetry.Quota{Unit: "tokens", Remaining: 7}, map[string]string{"unit": "what", "remaining": "left"}},
		{telemetry.Reload{NotApplied: []string{"us-9"}}, map[string]string{"not_applied": "left"}},
		{record.RequestRecord{HeldFor: "us-1"}, map[string]string{"held_for": "kept_for"}},
		{record.Attempt{HeldFor: "us-1"}, map[string]string{"held_for": "kept_for"}},
		{plan.ReplicaChange{ReceivedTPS: 12, ForwardedTPS: 7}, map[string]string{"received_tps": "taken_tps", "forwarded_tps": "sent_tps"}},
		{plan.ReservedLoad{MinTPS: 3, PeakOverMin: &ratio}, map[string]string{"min_tps": "least_tps", "peak_over_min": "peak_over_least"}},
		{plan.ReservedCost{Option: "mixed"}, map[string]string{"option": "way"}},
		{plan.RuleOutcome{Name: plan.RuleHourly, MaxReplicas: 4, OverloadMinutes: 3, OverloadTokens: 90, OverloadShare: &ratio, ForwardedTokens: 8}, map[string]string{
			"name": "rule", "max_replicas": "most_replicas", "overload_minutes": "minutes_above", "overload_tokens": "tokens_above",
			"overload_share": "share_above", "forwarded_tokens": "tokens_sent",
		}},
		{plan.Proposal{OverBudget: []string{"2 L4"}}, map[string]string{"over_budget": "cut"}},
		{telemetry.PlanSummary{OverBudget: []string{"2 L4"}}, map[string]string{"over_budget": "cut"}},
		{telemetry.ModelSnapshot{SLOMisses: 3}, map[string]string{"slo_misses": "late"}},
		{telemetry.Donation{RevenuePerHour: 0.3}, map[string]string{"revenue_per_hour": "earns_per_hour"}},
		{telemetry.DecisionMemory{Recorded: 5}, map[string]string{"recorded": "remembered"}},
		{explain.BalancerRecords{Recorded: new(int)}, map[string]string{"recorded": "remembered"}},
		{deploy.MachineStatus{Desired: true}, map[string]string{"desired": "wanted"}},
		{provision.CheckResult{Message: "quota"}, map[string]string{"message": "what"}},
		{provision.LaunchCheck{CheckResult: provision.CheckResult{Message: "L4"}}, map[string]string{"message": "what"}},
		{offerRow{QuotaRemaining: &ratio}, map[string]string{"quota_remaining": "quota_left"}},
		{load.Report{RowsSkipped: new(int)}, map[string]string{"rows_skipped": "rows_left_out"}},
		{sim.ConstantsTrace{Skipped: 4}, map[string]string{"skipped": "left_out"}},
		{eval.Replay{Truncated: true}, map[string]string{"truncated": "cut"}},
		{eval.ReplayRow{Source: "recorded"}, map[string]string{"source": "of"}},
		{eval.CalibrationError{Quantity: "prefill"}, map[string]string{"quantity": "of"}},
		{eval.SagePaper{Strategy: "lt-i"}, map[string]string{"strategy": "of"}},
		{agent.Status{InterruptionAt: at, RebalanceAt: at}, map[string]string{"interruption_at": "gone_at", "rebalance_at": "advised_at"}},
		{sim.Constants{ClientTimeout: 5000}, map[string]string{"client_timeout_ms": "patience_ms"}},
		{eval.Claim{Claim: sim.Claim{Min: 0.3, Max: 0.5}}, map[string]string{"min": "least", "max": "most"}},
		{record.Config{MaxRetryBackoff: time.Second, MaxEjectTime: time.Minute}, map[string]string{"retry_wait_max_ns": "retry_wait_most_ns", "eject_max_ns": "eject_most_ns"}},
	} {
		data, err := json.Marshal(c.document)
		if err != nil {
			t.Fatal(err)
		}
		var keys map[string]any
		if err := json.Unmarshal(data, &keys); err != nil {
			t.Fatal(err)
		}
		for key, former := range c.former {
			if value := keys[key]; value == nil || !reflect.DeepEqual(value, keys[former]) {
				t.Errorf("%T: %s is %v, its former key %s is %v", c.document, key, value, former, keys[former])
			}
		}
	}
}

// Balancers and files of the version before are read by their former keys.
func TestFormerJSONKeysAreRead(t *testing.T) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		former string
		read   any
		want   any
	}{
		{`{"left":"above its forecast"}`, &telemetry.LoadForecast{}, &telemetry.LoadForecast{Deviation: "above its forecast"}},
		{`{"what":"tokens","left":7}`, &telemetry.Quota{}, &telemetry.Quota{Unit: "tokens", Remaining: 7}},
		{`{"cut":["2 L4"]}`, &telemetry.PlanSummary{}, &telemetry.PlanSummary{OverBudget: []string{"2 L4"}}},
		{`{"late":3}`, &telemetry.ModelSnapshot{}, &telemetry.ModelSnapshot{SLOMisses: 3}},
		{`{"earns_per_hour":0.3}`, &telemetry.Donation{}, &telemetry.Donation{RevenuePerHour: 0.3}},
		{`{"remembered":5}`, &telemetry.DecisionMemory{}, &telemetry.DecisionMemory{Recorded: 5}},
		{`{"gone_at":"2026-11-24T12:00:00Z","advised_at":"2026-11-24T12:00:00Z"}`, &agent.Status{}, &agent.Status{InterruptionAt: at, RebalanceAt: at}},
		{`{"left":["us-9"]}`, &telemetry.Reload{}, &telemetry.Reload{NotApplied: []string{"us-9"}}},
		{`{"retry_wait_most_ns":5,"eject_most_ns":9}`, &record.Config{}, &record.Config{MaxRetryBackoff: 5, MaxEjectTime: 9}},
	} {
		if err := json.Unmarshal([]byte(c.former), c.read); err != nil || !reflect.DeepEqual(c.read, c.want) {
			t.Errorf("%s is read as %+v (%v), want %+v", c.former, c.read, err, c.want)
		}
	}
}
