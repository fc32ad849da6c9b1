package service

import (
	"strings"
	"testing"
)

// regionIn returns a service.yaml with one region.
func regionIn(name string) string {
	text := "name: chat\nmodels: [{name: m}]\nregions:\n  - name: " + name + "\n"
	if !strings.HasPrefix(name, "local/") {
		text += "balancer: {insecure: true}\n"
	}
	return text
}

// A region that its cloud does not have is rejected with a suggestion; a region that may be newer
// than the table only causes a warning.
func TestParseRejectsUnknownCloudRegions(t *testing.T) {
	for _, tt := range []struct{ name, problem, suggestion, warning string }{
		{name: "aws/us-east-1"},
		{name: "aws/cn-north-1"},
		{name: "aws/us-gov-west-1"},
		{name: "gcp/us-central1"},
		{name: "gcp/europe-north2"},
		{name: "local/us-esat-1"},
		{"aws/us-esat-1", "is not a region of AWS", `did you mean aws/us-east-1?`, ""},
		{"aws/us-eas-1", "is not a region of AWS", `did you mean aws/us-east-1?`, ""},
		{"aws/us-eest-2", "is not a region of AWS", `did you mean aws/us-east-2?`, ""},
		{"aws/us-east1", "is not a region of AWS", `did you mean aws/us-east-1 or gcp/us-east1?`, ""},
		{"aws/us-east", "is not a region of AWS", `did you mean aws/us-east-1?`, ""},
		{"aws/us-east-1a", "is not a region of AWS", `did you mean aws/us-east-1?`, ""},
		{"aws/us-central1", "is not a region of AWS", `gcp/us-central1?`, ""},
		{"aws/frankfurt", "is not a region of AWS", "names of AWS regions look like us-east-1", ""},
		{"gcp/us-east-1", "is not a region of Google Cloud", `did you mean gcp/us-east1 or aws/us-east-1?`, ""},
		{"gcp/us-centrel1", "is not a region of Google Cloud", `did you mean gcp/us-central1?`, ""},
		{"gcp/us-central1-a", "is not a region of Google Cloud", `did you mean gcp/us-central1?`, ""},
		{"gcp/europe-west", "is not a region of Google Cloud", `did you mean gcp/europe-west1?`, ""},
		{"gcp/a", "is not a region of Google Cloud", "names of Google Cloud regions look like us-central1", ""},
		{"aws/us-east-3", "", "", "aws/us-east-3 is not in the list of regions of AWS"},
		{"aws/mars-north-1", "", "", "aws/mars-north-1 is not in the list of regions of AWS"},
		{"gcp/us-west8", "", "", "gcp/us-west8 is not in the list of regions of Google Cloud"},
		{"gcp/antarctica-south1", "", "", "gcp/antarctica-south1 is not in the list of regions"},
	} {
		spec, err := Parse("service.yaml", []byte(regionIn(tt.name)))
		switch {
		case tt.problem == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.problem == "":
			if got := strings.Join(spec.Warnings(), "\n"); !strings.Contains(got, tt.warning) || (tt.warning == "") != !strings.Contains(got, "regions") {
				t.Errorf("%s: warnings are %q, want %q", tt.name, got, tt.warning)
			}
		case err == nil:
			t.Errorf("%s is accepted", tt.name)
		default:
			for _, want := range []string{"service.yaml:4:11: regions[0].name: " + tt.problem, tt.name, tt.suggestion} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want %q", tt.name, err, want)
				}
			}
		}
	}
}

// An empty name is similar to no region.
func TestEmptyRegionNameHasNoSuggestion(t *testing.T) {
	_, err := Parse("service.yaml", []byte(regionIn(`""`)))
	if err == nil || !strings.Contains(err.Error(), "regions[0].name: must be CLOUD/REGION") || strings.Contains(err.Error(), "did you mean") {
		t.Error(err)
	}
}

// The names of balancers are reserved: no suggestion is one of them.
func TestSuggestedRegionIsNotReserved(t *testing.T) {
	for name, want := range map[string]string{
		"static/lb_x": "write static/lbx: names that begin with lb- are reserved", "local/LB__us": "write local/lbus: names",
		"static/lb_": "choose another name: lb is reserved", "static/Lb": "choose another name: lb is reserved", "static/lbx_1": "write static/lbx-1",
		"aws/lb_north-1": "did you mean aws/cn-north-1?",
	} {
		_, err := Parse("service.yaml", []byte(regionIn(name)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

// The tables are sorted, without duplicates, and contain only names in the format of regions.
func TestCloudRegionTablesAreSorted(t *testing.T) {
	for _, c := range clouds {
		last := ""
		for _, name := range c.regions {
			if name <= last || !c.pattern.MatchString(name) {
				t.Errorf("%s: %q after %q", c.title, name, last)
			}
			last = name
		}
	}
}
