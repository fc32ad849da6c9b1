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

// While no machine runs a controller, the leader that balancers still report is not shown.
func TestEndedControllerDoesNotLead(t *testing.T) {
	status := &deploy.ServiceStatus{Service: "chat", Leadership: &telemetry.ControllerState{Leader: "lb-eu-0", Term: 7}}
	for running, want := range map[bool]string{false: "controller: not running; ", true: "controller: leader lb-eu-0, term 7, no standby\n"} {
		if running {
			status.Controller = &deploy.ControllerStatus{ID: "controller", Machine: "lb-eu-0"}
		}
		var text bytes.Buffer
		if err := (&serviceView{svc: local.Service{}, spec: &service.Spec{Name: "chat"}}).writeStatus(&text, status, outputFormat{kind: outputText}); err != nil {
			t.Fatal(err)
		}
		if strings.Count(text.String(), "controller: ") != 1 || !strings.Contains(text.String(), want) {
			t.Errorf("running %v: no %q alone in\n%s", running, want, &text)
		}
		status.Controller = nil
	}
}

// An alert of the controller is a message above the table, once, whether or not a balancer reports it too: in the table, it
// would make it hundreds of columns wide. Messages that look like alerts stay in the row.
func TestControllerAlertIsOutsideTable(t *testing.T) {
	alert := telemetry.Alert{Severity: telemetry.SeverityCritical, Kind: telemetry.AlertStore, Object: "members", Message: "no majority responds", NextStep: "run 'skyserve up'"}
	other := telemetry.Alert{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertPlan, Message: "no forecast"}
	for name, reported := range map[string][]telemetry.Alert{"no balancer responds": nil, "balancers report it": {alert}, "balancers report another": {other}} {
		for state, reason := range map[service.ReplicaState]string{service.StateReady: "", service.StateStarting: "readiness probe returned HTTP status 503", service.StateFailed: "warning: exit status 1"} {
			status := &deploy.ServiceStatus{Service: "chat", Alerts: reported, Controller: &deploy.ControllerStatus{ID: "controller", Machine: "lb-us-0", State: state, Reason: reason, Alerts: []telemetry.Alert{alert}}}
			var text bytes.Buffer
			if err := (&serviceView{svc: local.Service{}, spec: &service.Spec{Name: "chat"}}).writeStatus(&text, status, outputFormat{kind: outputText}); err != nil {
				t.Fatal(err)
			}
			messages, table, _ := strings.Cut(text.String(), "REGION")
			row := strings.TrimSuffix("runs beside lb-us-0: "+reason, ": ")
			if strings.Count(messages, "critical: store members: no majority responds; run 'skyserve up'\n") != 1 || strings.Contains(table, "no majority") || !strings.Contains(table, row) {
				t.Errorf("%s, %s:\n%s", state, name, &text)
			}
		}
	}
}
