package main

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
	"skyserve/internal/telemetry"
	"skyserve/lbd/record"
	"skyserve/plan"
)

// Tools that read a former key find the value of the new one there.
func TestFormerJSONKeysHaveTheSameValues(t *testing.T) {
	ratio := 2.5
	for _, c := range []struct {
		document any
		former   map[string]string // by the new key
	}{
		{telemetry.LoadForecast{Deviation: "above its forecast"}, map[string]string{"deviation": "left"}},
		{deploy.ServiceStatus{Deviation: "above its forecast"}, map[string]string{"deviation": "left"}},
		{telemetry.Quota{Remaining: 7}, map[string]string{"remaining": "left"}},
		{telemetry.Reload{NotApplied: []string{"us-9"}}, map[string]string{"not_applied": "left"}},
		{record.RequestRecord{HeldFor: "us-1"}, map[string]string{"held_for": "kept_for"}},
		{record.Attempt{HeldFor: "us-1"}, map[string]string{"held_for": "kept_for"}},
		{plan.ReplicaChange{ReceivedTPS: 12, ForwardedTPS: 7}, map[string]string{"received_tps": "taken_tps", "forwarded_tps": "sent_tps"}},
		{plan.CommitmentLoad{MinTPS: 3, PeakOverMin: &ratio}, map[string]string{"min_tps": "least_tps", "peak_over_min": "peak_over_least"}},
		{plan.CommitmentCost{Option: "mixed"}, map[string]string{"option": "way"}},
		{plan.RuleOutcome{MaxReplicas: 4}, map[string]string{"max_replicas": "most_replicas"}},
		{sim.Constants{ClientTimeout: 5000}, map[string]string{"client_timeout_ms": "patience_ms"}},
		{eval.Claim{Claim: sim.Claim{Min: 0.3, Max: 0.5}}, map[string]string{"min": "least", "max": "most"}},
		{record.Config{RetryWaitMax: time.Second, EjectMax: time.Minute}, map[string]string{"retry_wait_max_ns": "retry_wait_most_ns", "eject_max_ns": "eject_most_ns"}},
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
	for _, c := range []struct {
		former string
		read   any
		want   any
	}{
		{`{"left":"above its forecast"}`, &telemetry.LoadForecast{}, &telemetry.LoadForecast{Deviation: "above its forecast"}},
		{`{"left":7}`, &telemetry.Quota{}, &telemetry.Quota{Remaining: 7}},
		{`{"left":["us-9"]}`, &telemetry.Reload{}, &telemetry.Reload{NotApplied: []string{"us-9"}}},
		{`{"retry_wait_most_ns":5,"eject_most_ns":9}`, &record.Config{}, &record.Config{RetryWaitMax: 5, EjectMax: 9}},
	} {
		if err := json.Unmarshal([]byte(c.former), c.read); err != nil || !reflect.DeepEqual(c.read, c.want) {
			t.Errorf("%s is read as %+v (%v), want %+v", c.former, c.read, err, c.want)
		}
	}
}
