package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision/local"
)

// `status` prints an alert of every kind with its severity, object, message and next step; -o json has the same.
func TestStatusShowsEveryAlert(t *testing.T) {
	for _, kind := range telemetry.AlertKinds() {
		for _, severity := range []telemetry.Severity{telemetry.SeverityWarning, telemetry.SeverityCritical} {
			alert := telemetry.Alert{Severity: severity, Kind: kind, Region: "aws/us-east-1", Object: "its-object", Message: "the message", NextStep: "the next step"}
			status := &deploy.ServiceStatus{Service: "chat", State: deploy.StateReady, Alerts: []telemetry.Alert{alert}}
			var text bytes.Buffer
			if err := (&serviceView{svc: local.Service{}, spec: &service.Spec{Name: "chat"}}).writeStatus(&text, status, outputFormat{kind: outputText}); err != nil {
				t.Fatal(err)
			}
			if want := "\n" + string(severity) + ": " + alert.Subject() + ": the message; the next step\n"; !strings.Contains(text.String(), want) {
				t.Errorf("%q is missing in\n%s", want, text.String())
			}
			data, err := json.Marshal(status)
			var read struct{ Alerts []telemetry.Alert }
			if err == nil {
				err = json.Unmarshal(data, &read)
			}
			if err != nil || len(read.Alerts) != 1 || read.Alerts[0] != alert {
				t.Errorf("%s: got %+v, %v", kind, read.Alerts, err)
			}
		}
	}
}

// The row of the controller repeats none of the alerts that the status shows above, and has its reason otherwise.
func TestControllerRowRepeatsNoAlerts(t *testing.T) {
	alert := telemetry.Alert{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertStore, Object: "members", Message: "the store is not replicated", NextStep: "run 'skyserve up'"}
	for name, tt := range map[string]struct {
		state  service.ReplicaState
		reason string
		alerts []telemetry.Alert
	}{
		"ready, with alerts":           {service.StateReady, alert.Line(), []telemetry.Alert{alert}},
		"ready, no balancer reachable": {service.StateReady, alert.Line(), nil},
		"starting":                     {service.StateStarting, "waiting for the store", []telemetry.Alert{alert}},
	} {
		t.Run(name, func(t *testing.T) {
			status := &deploy.ServiceStatus{Service: "chat", Alerts: tt.alerts, Controller: &deploy.ControllerStatus{ID: "controller", Machine: "lb-us-0", State: tt.state, Reason: tt.reason}}
			var text bytes.Buffer
			if err := (&serviceView{svc: local.Service{}, spec: &service.Spec{Name: "chat"}}).writeStatus(&text, status, outputFormat{kind: outputText}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(text.String(), tt.reason); got != 1 || !strings.Contains(text.String(), "runs beside lb-us-0") {
				t.Errorf("the reason occurs %d times, want once:\n%s", got, &text)
			}
		})
	}
}

// An alert of the controller that no balancer reports is a message above the table, which it would make hundreds of
// columns wide.
func TestControllerAlertIsOutsideTable(t *testing.T) {
	for state, reason := range map[service.ReplicaState]string{
		service.StateReady:    "warning: store members: the store is not replicated; run 'skyserve up'",
		service.StateStarting: "readiness probe returned HTTP status 503: critical: store members: no majority responds; run 'skyserve up'",
	} {
		for name, alerts := range map[string][]telemetry.Alert{"none shown": nil, "other alert shown": {{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertPlan, Message: "no forecast"}}} {
			status := &deploy.ServiceStatus{Service: "chat", Alerts: alerts, Controller: &deploy.ControllerStatus{ID: "controller", Machine: "lb-us-0", State: state, Reason: reason}}
			var text bytes.Buffer
			if err := (&serviceView{svc: local.Service{}, spec: &service.Spec{Name: "chat"}}).writeStatus(&text, status, outputFormat{kind: outputText}); err != nil {
				t.Fatal(err)
			}
			_, table, _ := strings.Cut(text.String(), "REGION")
			if state == service.StateStarting && strings.Count(text.String(), "no majority responds") != 1 || strings.Contains(table, "skyserve up") || !strings.Contains(table, "runs beside lb-us-0") {
				t.Errorf("%s, %s:\n%s", state, name, &text)
			}
		}
	}
}
