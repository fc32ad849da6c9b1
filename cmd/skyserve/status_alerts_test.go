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
			if want := "\n" + string(severity) + ": " + kind + " its-object: the message; the next step\n"; !strings.Contains(text.String(), want) {
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
