package testcloud_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
)

// Every resource has the fields that Google's discovery document lists for all of them.
func TestGCEResourcesHaveIdentity(t *testing.T) {
	g := testcloud.NewGCE("p", nil)
	for path, number := range map[string]bool{
		"zones/us-central1-a/machineTypes": false, "zones/us-central1-a/acceleratorTypes/nvidia-l4": true, "regions/us-central1": true, "global/networks/default": true,
		"global/firewalls": false, "aggregated/instances": false, "": true,
	} {
		at := strings.TrimSuffix("/compute/v1/projects/p/"+path, "/")
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest("GET", at, nil))
		var got struct{ Kind, ID, SelfLink string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v in %s", path, err, w.Body)
		}
		if got.Kind == "" || got.ID == "" || got.SelfLink != "https://www.googleapis.com"+at || number == strings.Contains(got.ID, "/") {
			t.Errorf("%s has %+v", path, got)
		}
	}
}
