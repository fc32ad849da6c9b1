package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/controller/rollout"
	"skyserve/internal/explain"
	"skyserve/internal/load"
	"skyserve/internal/telemetry"
	"skyserve/internal/whatif"
	"skyserve/lbd/proxy"
	"skyserve/plan"
	"skyserve/provision/cloud"
)

// Tools rely on the keys of JSON output: each of them is documented.
func TestEveryJSONKeyIsDocumented(t *testing.T) {
	guide, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range []any{
		telemetry.Snapshot{},
		telemetry.Reload{},
		rollout.Status{},
		fleet.Status{},
		load.Report{},
		plan.Proposal{},
		plan.Problem{},
		plan.Reservation{},
		plan.Backtest{},
		forecastSeries{},
		backtestSeries{},
		whatif.Report{},
		whatif.BFIOReport{},
		whatif.SageReport{},
		whatif.Calibration{},
		proxy.DecisionRecord{},
		explain.Story{},
		telemetry.DecisionMemory{},
		telemetry.RequestSummary{},
		telemetry.UsageReport{},
		usageSum{},
		operatorRow{},
		cloud.QuotaNeed{},
		whatif.ReplayReport{},
	} {
		for _, key := range jsonKeys(reflect.TypeOf(document), map[reflect.Type]bool{}) {
			if !strings.Contains(string(guide), "`"+key+"`") && !strings.Contains(string(guide), "`."+key+"`") {
				t.Errorf("docs/json.md does not tell of key %q of %T", key, document)
			}
		}
	}
}

// jsonKeys lists the keys of a type and of all that it holds.
func jsonKeys(t reflect.Type, seen map[reflect.Type]bool) []string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return jsonKeys(t.Elem(), seen)
	case reflect.Struct:
	default:
		return nil
	}
	if seen[t] || !strings.HasPrefix(t.PkgPath(), "skyserve/") && t.PkgPath() != "main" || strings.HasPrefix(t.Name(), "Maybe") {
		return nil
	}
	seen[t] = true
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" {
			keys = append(keys, key)
		}
		keys = append(keys, jsonKeys(f.Type, seen)...)
	}
	return keys
}
