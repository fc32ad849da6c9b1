package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/sim/eval"
	"skyserve/internal/sim/load"
	"skyserve/internal/telemetry"
	"skyserve/lbd/explain"
	"skyserve/lbd/record"
	"skyserve/plan"
	"skyserve/provision/cloud"
)

// Every key of JSON output is documented, since tools depend on them.
func TestEveryJSONKeyIsDocumented(t *testing.T) {
	guide, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range []any{
		telemetry.Snapshot{},
		telemetry.Reload{},
		telemetry.EventReport{},
		deploy.ServiceStatus{},
		offerListing{},
		blockListing{},
		boughtBlock{},
		load.Report{},
		plan.Proposal{},
		plan.Problem{},
		plan.ReservedComparison{},
		plan.Backtest{},
		forecastSeries{},
		backtestSeries{},
		eval.SimReport{},
		eval.BFIOReport{},
		eval.SageReport{},
		eval.Calibration{},
		record.RequestRecord{},
		explain.Explanation{},
		telemetry.DecisionMemory{},
		telemetry.RequestSummary{},
		telemetry.UsageReport{},
		usageReport{},
		operatorRow{},
		rehearsalReport{},
		cloud.QuotaNeed{},
		eval.ReplayReport{},
		backupReport{},
	} {
		for _, key := range jsonKeys(reflect.TypeOf(document), map[reflect.Type]bool{}) {
			if !strings.Contains(string(guide), "`"+key+"`") && !strings.Contains(string(guide), "`."+key+"`") {
				t.Errorf("docs/json.md does not document the key %q of %T", key, document)
			}
		}
	}
}

// jsonKeys returns the JSON keys of a type and of the types that it contains.
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
