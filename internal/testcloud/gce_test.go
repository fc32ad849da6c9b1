package testcloud_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
)

// send sends one request and returns the status and an error's reason.
func send(t *testing.T, g *testcloud.GCE, method, path, body string) (status int, reason string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	g.ServeHTTP(recorder, httptest.NewRequest(method, path, strings.NewReader(body)))
	var reply struct {
		Error struct {
			Errors []struct{ Reason string }
		}
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &reply); err != nil {
		t.Fatalf("%s %s: %v in %s", method, path, err, recorder.Body)
	}
	if len(reply.Error.Errors) > 0 {
		reason = reply.Error.Errors[0].Reason
	}
	return recorder.Code, reason
}

// The emulation rejects what Compute Engine rejects, and everything that it does not support.
func TestGCERejectsInvalidRequests(t *testing.T) {
	const (
		project   = "/compute/v1/projects/p"
		instances = project + "/zones/us-central1-a/instances"
		firewalls = project + "/global/firewalls"
		machine   = `{"name":"a","machineType":"zones/us-central1-a/machineTypes/e2-standard-2","disks":[{"boot":true,"initializeParams":{"sourceImage":"x"}}],"networkInterfaces":[{"network":"global/networks/default"}]}`
		rule      = `{"name":"a","allowed":[{"IPProtocol":"tcp","ports":["80"]}]}`
	)
	change := func(s, from, to string) string { return strings.Replace(s, from, to, 1) }
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		reason                   string
	}{
		{"a machine", "POST", instances, machine, 200, ""},
		{"an unknown field", "POST", instances, change(machine, `{"name"`, `{"colour":"red","name"`), 400, "invalid"},
		{"a bad name", "POST", instances, change(machine, `"a"`, `"A_b"`), 400, "invalid"},
		{"a label in capitals", "POST", instances, change(machine, `{"name"`, `{"labels":{"a":"B"},"name"`), 400, "invalid"},
		{"a bad tag", "POST", instances, change(machine, `{"name"`, `{"tags":{"items":["-"]},"name"`), 400, "invalid"},
		{"no disk", "POST", instances, change(machine, `"boot":true`, `"boot":false`), 400, "invalid"},
		{"an unknown type", "POST", instances, change(machine, "e2-standard-2", "e9"), 400, "invalid"},
		{"a type of another zone", "POST", instances, change(machine, "zones/us-central1-a", "zones/us-east4-a"), 400, "invalid"},
		{"no such network", "POST", instances, change(machine, "networks/default", "networks/x"), 400, "invalid"},
		{"no such subnet", "POST", instances, change(machine, `"network":`, `"subnetwork":"regions/us-central1/subnetworks/x","network":`), 400, "invalid"},
		{"a subnet of another region", "POST", instances, change(machine, `"network":`, `"subnetwork":"regions/us-east4/subnetworks/default","network":`), 400, "invalid"},
		{"a spot machine with live migration", "POST", instances, change(machine, `{"name"`, `{"scheduling":{"provisioningModel":"SPOT","automaticRestart":false},"name"`), 400, "invalid"},
		{"an A3 on an old network card", "POST", instances, change(change(machine, "e2-standard-2", "a3-highgpu-8g"), `{"name"`, `{"scheduling":{"onHostMaintenance":"TERMINATE"},"name"`), 400, "invalid"},
		{"a small A3 on demand", "POST", instances, change(change(change(machine, "e2-standard-2", "a3-highgpu-1g"), `{"name"`, `{"scheduling":{"onHostMaintenance":"TERMINATE"},"name"`), `"network":`, `"nicType":"GVNIC","network":`), 400, "invalid"},
		{"a rule on no network", "POST", firewalls, change(rule, `{"name"`, `{"network":"global/networks/x","name"`), 400, "invalid"},
		{"a GPU machine with live migration", "POST", instances, change(machine, "e2-standard-2", "g2-standard-4"), 400, "invalid"},
		{"a spot machine with automatic restart", "POST", instances, change(machine, `{"name"`, `{"scheduling":{"provisioningModel":"SPOT"},"name"`), 400, "invalid"},
		{"an unknown zone", "POST", change(instances, "us-central1-a", "us-central1-q"), machine, 400, "invalid"},
		{"another project", "POST", change(instances, "projects/p", "projects/q"), machine, 404, "notFound"},
		{"no such machine", "GET", instances + "/b", "", 404, "notFound"},
		{"a bad filter", "GET", project + "/aggregated/instances?filter=name%20like%20x", "", 400, "invalid"},
		{"a bad page", "GET", project + "/aggregated/instances?pageToken=x", "", 400, "invalid"},
		{"a rule", "POST", firewalls, rule, 200, ""},
		{"a rule that allows nothing", "POST", firewalls, `{"name":"a"}`, 400, "invalid"},
		{"a rule with a long description", "POST", firewalls, change(rule, `{"name"`, `{"description":"`+strings.Repeat("x", 2049)+`","name"`), 400, "invalid"},
		{"no such region", "GET", project + "/regions/mars-1", "", 404, "notFound"},
		{"no such operation", "GET", project + "/global/operations/x", "", 404, "notFound"},
		{"an unknown method", "GET", project + "/global/snapshots", "", 404, "notFound"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := testcloud.NewGCE("p", nil)
			if status, reason := send(t, g, tt.method, tt.path, tt.body); status != tt.status || reason != tt.reason {
				t.Errorf("got %d %s, want %d %s", status, reason, tt.status, tt.reason)
			}
			if tt.status == http.StatusOK { // a second one with the same name is rejected, unless it has the same request id
				if status, reason := send(t, g, tt.method, tt.path, tt.body); status != 409 || reason != "alreadyExists" {
					t.Errorf("again: got %d %s", status, reason)
				}
				for range 2 {
					if status, reason := send(t, g, tt.method, tt.path+"?requestId=r1", change(tt.body, `"a"`, `"b"`)); status != 200 {
						t.Errorf("with a request id: got %d %s", status, reason)
					}
				}
			}
		})
	}
}
