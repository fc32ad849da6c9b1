package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// Earlier versions launched machines at Google under names without a kind. `up` creates no second
// service beside them, and `down` deletes them.
func TestUpRejectsMachinesOfEarlierVersion(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(strings.ReplaceAll(oneRegion, "aws/us-east-1", "gcp/us-central1")), "--yes")
	e.skyserve(exitOK, up...)
	like := e.gce.Instances()[0]
	earlier := "skyserve-chat-" + like.Labels["skyserve-id"] + "-0123456789ab"
	e.insertAtGoogle(testcloud.GCEInstance{
		Name: earlier, MachineType: "zones/us-central1-a/machineTypes/e2-standard-2", Labels: like.Labels, Metadata: like.Metadata, Disks: like.Disks,
		NetworkInterfaces: []testcloud.GCEInterface{{Network: "global/networks/default"}},
		Scheduling:        testcloud.GCEScheduling{ProvisioningModel: "STANDARD", OnHostMaintenance: "MIGRATE"},
	})
	if out := e.skyserve(exitFailed, up...); !strings.Contains(out, earlier) || !strings.Contains(out, "skyserve down chat") {
		t.Errorf("up prints neither the machine nor a hint:\n%s", out)
	}
	e.downAndCheckEmpty()
}

// insertAtGoogle launches a machine in a zone of Compute Engine.
func (e *emulated) insertAtGoogle(i testcloud.GCEInstance) {
	e.t.Helper()
	body, err := json.Marshal(i)
	if err != nil {
		e.t.Fatal(err)
	}
	resp, err := http.Post(e.google+"/compute/v1/projects/p/zones/us-central1-a/instances", "application/json", bytes.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		e.t.Fatalf("launching: %s, %v\n%s", resp.Status, err, text)
	}
}
