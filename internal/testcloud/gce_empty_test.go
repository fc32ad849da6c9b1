package testcloud_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
)

// Google's JSON omits empty lists and texts: a reply has neither null nor [] nor "".
func TestGCEOmitsEmptyLists(t *testing.T) {
	const project = "/compute/v1/projects/p"
	g := testcloud.NewGCE("p", nil)
	g.EditPriceList(func([]testcloud.GCESKU) []testcloud.GCESKU { return nil })
	g.DenyPermissions("compute.instances.create")
	for _, call := range []struct{ method, path, body string }{
		{"GET", project + "/zones/us-central1-a/machineTypes?filter=name+eq+%22none%22", ""},
		{"GET", project + "/aggregated/instances", ""},
		{"GET", project + "/global/firewalls", ""},
		{"GET", "/v1/services/6F81-5844-456A/skus", ""},
		{"POST", "/v1/projects/p:testIamPermissions", `{"permissions":["compute.instances.create"]}`},
		{"POST", project + "/regions/us-central1/advice/capacity", `{"size":1,"instanceFlexibilityPolicy":{"instanceSelections":{"a":{"machineTypes":["g2-standard-4"]}}},"instanceProperties":{"scheduling":{"provisioningModel":"SPOT"}},"distributionPolicy":{"targetShape":"ANY_SINGLE_ZONE","zones":[]}}`},
	} {
		recorder := httptest.NewRecorder()
		g.ServeHTTP(recorder, httptest.NewRequest(call.method, call.path, strings.NewReader(call.body)))
		if recorder.Code != 200 {
			t.Errorf("%s: %d %s", call.path, recorder.Code, recorder.Body)
			continue
		}
		var reply map[string]any
		if err := json.Unmarshal(recorder.Body.Bytes(), &reply); err != nil {
			t.Fatal(err)
		}
		for key, value := range reply {
			list, isList := value.([]any)
			if value == nil || value == "" || isList && len(list) == 0 {
				t.Errorf("%s: %s is empty in %s", call.path, key, recorder.Body)
			}
		}
	}
}
